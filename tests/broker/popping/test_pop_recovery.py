"""What a broker knows of pops after it was stopped or killed."""

import asyncio
import errno
from dataclasses import replace
from random import Random

import pytest
from tests.broker.folders import killed
from tests.broker.headers import send_header
from tests.broker.popping.poppers import EXPIRED, Popper, bodies
from tests.broker.popping.test_pop_processor import after, committed, send
from tests.store.making import settle

from pyromq.broker.broker import Broker
from pyromq.broker.confirmation import ReplicaRule
from pyromq.broker.role import BrokerRole
from pyromq.names import pop_retry_topic
from pyromq.remoting.headers import DeleteGroup, DeleteTopic, UpdateConsumerOffset
from pyromq.store.store_config import FlushMode
from pyromq.testing import SimulatedDisk
from pyromq.testing.killed_folder import keep_as_killed
from pyromq.testing.simulated_disk import Loss


async def popped(config, clock, caller_to, end):
    """Let a broker hand out a to d, acknowledge b, and change c to 60 s; then end it. Return what was received."""
    broker = Broker(config, clock)
    await broker.__aenter__()
    caller = await caller_to(broker)
    await caller.create_topic("orders", queues=1)
    await send(caller, *"abcde")
    popper = Popper(caller, clock)
    a, b, c, d = await popper.pop(4, invisible_ms=10_000)
    await popper.ack(b)
    c = await popper.change(c, 60_000)
    await end(broker)
    return a, b, c, d


async def stop(broker):
    await broker.__aexit__(None, None, None)


async def kill(broker):
    await keep_as_killed(broker.config.data, lambda: stop(broker))


async def check_goes_on(config, clock, caller_to, received):
    a, b, c, d = received
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        popper = Popper(caller, clock)
        assert await committed(caller) == 0
        assert bodies(await popper.pop()) == [b"e"]
        await popper.ack(a)
        await popper.ack(b)
        assert await committed(caller) == 2
        await after(clock, 10)
        assert [each.body for each in await popper.pop()] == [b"d"]
        await popper.ack(d, code=EXPIRED)
        await popper.ack(c)
        assert await committed(caller) == 4


async def test_a_killed_broker_repeats_nothing(config, clock, caller_to):
    received = await popped(config, clock, caller_to, kill)
    await check_goes_on(config, clock, caller_to, received)


async def test_a_stopped_broker_repeats_nothing(config, clock, caller_to):
    received = await popped(config, clock, caller_to, stop)
    await check_goes_on(config, clock, caller_to, received)


async def test_what_was_due_while_the_broker_was_away_is_redelivered(config, clock, caller_to):
    await popped(config, clock, caller_to, kill)
    await clock.advance(3_600)
    async with Broker(config, clock) as broker:
        await after(clock, 0)
        popper = Popper(await caller_to(broker), clock)
        assert bodies(await popper.pop()) == [b"a", b"c", b"d", b"e"]


async def test_an_offset_that_another_program_changed_is_obeyed(config, clock, caller_to):
    await popped(config, clock, caller_to, stop)
    path = config.data / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"orders@g":{"0":3}}}')
    async with Broker(config, clock) as broker:
        popper = Popper(await caller_to(broker), clock)
        assert bodies(await popper.pop()) == [b"d", b"e"]


async def test_a_group_whose_offsets_another_program_removed_pops_from_the_beginning(config, clock, caller_to):
    await popped(config, clock, caller_to, stop)
    path = config.data / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"other@g":{"0":3}}}')
    async with Broker(config, clock) as broker:
        popper = Popper(await caller_to(broker), clock)
        assert bodies(await popper.pop()) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("end", [stop, kill])
async def test_a_started_broker_follows_the_offset_that_a_request_sets(config, clock, caller_to, end):
    await popped(config, clock, caller_to, end)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.ask(UpdateConsumerOffset("g", "orders", 0, 3))
        assert bodies(await Popper(caller, clock).pop()) == [b"d", b"e"]


@pytest.mark.parametrize("end", [stop, kill])
async def test_a_started_broker_forgets_the_pops_of_a_deleted_topic(config, clock, caller_to, end):
    await popped(config, clock, caller_to, end)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.ask(DeleteTopic(topic="orders"))
        await caller.create_topic("orders", queues=1)
        await send(caller, *"xyz")
        assert bodies(await Popper(caller, clock).pop()) == [b"x", b"y", b"z"]


async def test_messages_that_a_power_loss_took_are_not_passed(config, clock, caller_to):
    await popped(config, clock, caller_to, kill)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        queue = broker.pops.in_flight.find("g", "orders", 0)
        # As after the loss of what follows b: the journal is ahead of the queue.
        assert (queue.next_offset, queue.committed) == (4, 0)
        broker.store.next_offset = lambda topic, queue_id: 2
        for pop in list(queue.leases()):
            broker.pops.in_flight.prolong(pop, clock.now_ms() + 99_000)
        broker.pops.lower_to_ends()
        assert (queue.next_offset, queue.committed, queue.in_flight) == (2, 0, 1)
        assert bodies(await Popper(caller, clock).pop()) == [b"c", b"d", b"e"]


async def test_an_offset_behind_the_end_of_a_cut_log_is_lowered(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        await (await caller_to(broker)).create_topic("orders", queues=1)
        broker.offsets.commit("g", "orders", 0, 3)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await send(caller, "new")
        assert bodies(await Popper(caller, clock).pop()) == [b"new"]


async def test_a_lowered_offset_outlives_a_kill_before_the_next_save(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        await (await caller_to(broker)).create_topic("orders", queues=1)
        broker.offsets.commit("g", "orders", 0, 3)
    async with Broker(config, clock) as broker:
        await send(await caller_to(broker), "a", "b", "c", "d")
        left = killed(config)
    async with Broker(left, clock) as broker:
        assert bodies(await Popper(await caller_to(broker), clock).pop()) == [b"a", b"b", b"c", b"d"]


async def test_a_new_master_goes_on_at_the_committed_offset(config, clock, caller_to):
    await popped(config, clock, caller_to, stop)
    async with Broker(config, clock, role=BrokerRole(1)) as follower:
        caller = await caller_to(follower)
        popper = Popper(caller, clock)
        response = await caller.ask(popper.header(), code=14)
        assert "not the master" in response.remark
        await follower.promote()
        assert bodies(await popper.pop()) == [b"a", b"b", b"c", b"d", b"e"]


async def test_messages_of_a_live_member_stay_invisible(broker, orders, popper, clock):
    await orders.beat("worker", group="g")
    await send(orders, "a")
    (received,) = await popper.pop(invisible_ms=20_000, renewed_for="worker")
    for _ in range(20):
        await after(clock, 5)
        await orders.beat("worker", group="g")
        assert await popper.pop() == []
    await popper.ack(received)
    assert await committed(orders) == 1


async def test_a_message_that_a_live_member_gives_back_is_redelivered(broker, orders, popper, clock):
    await orders.beat("worker", group="g")
    await send(orders, "a")
    (received,) = await popper.pop(invisible_ms=20_000, renewed_for="worker")
    await popper.change(received, 5_000)
    await orders.beat("worker", group="g")
    await after(clock, 5)
    assert bodies(await popper.pop()) == [b"a"]


async def test_after_a_restart_members_can_connect_before_their_messages_are_due(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await caller.beat("worker", group="g")
        await send(caller, "a")
        (received,) = await Popper(caller, clock).pop(renewed_for="worker")
    await clock.advance(60)
    async with Broker(config, clock) as broker:
        popper = Popper(await caller_to(broker), clock)
        await after(clock, 20)
        assert await popper.pop() == []
        await popper.ack(received)
        await after(clock, 60)
        assert await popper.pop() == []


async def test_messages_of_a_member_whose_connection_was_replaced_are_redelivered(
    broker, orders, popper, clock, caller_to
):
    worker = await caller_to(broker)
    await worker.beat("worker", group="g")
    await send(orders, "a")
    assert len(await popper.pop(invisible_ms=60_000, renewed_for="worker")) == 1  # its reply may be lost
    await worker.channel.close()
    await asyncio.sleep(0.01)
    await after(clock, 5)
    await orders.beat("worker", group="g")
    for _ in range(12):
        await after(clock, 5)
        await orders.beat("worker", group="g")
    assert bodies(await popper.pop()) == [b"a"]


async def test_messages_of_each_client_of_a_proxys_connection_stay_invisible(broker, orders, popper, clock):
    workers = ("one", "two", "three")
    for worker in workers:
        await orders.beat(worker, group="g")
    await send(orders, "a")
    await popper.pop(invisible_ms=20_000, renewed_for="one")
    for _ in range(20):
        await after(clock, 5)
        for worker in workers:
            await orders.beat(worker, group="g")
        assert await popper.pop() == []


async def test_messages_of_a_member_that_left_are_redelivered(broker, orders, popper, clock, caller_to):
    worker = await caller_to(broker)
    await worker.beat("worker", group="g")
    await send(orders, "a")
    assert len(await popper.pop(invisible_ms=60_000, renewed_for="worker")) == 1
    await worker.channel.close()
    await asyncio.sleep(0.01)
    await after(clock, 10)
    assert bodies(await popper.pop()) == [b"a"]


@pytest.mark.parametrize("deletion", [DeleteTopic(topic="orders"), DeleteGroup(group="g", remove_offsets=True)])
async def test_a_power_loss_restores_no_pop_of_a_deleted_topic_or_group(config, clock, caller_to, deletion):
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await send(caller, *"abcde")
        await Popper(caller, clock).ack(*await Popper(caller, clock).pop())
        settle(disk)
        deleted = caller.channel.call_soon(deletion, timeout=30)
        while not deleted.done():
            await committed(caller, group="another")
            broker.store.flush_due()
        await caller.create_topic("orders", queues=1)
        await send(caller, *"xyz")
        broker.store._flusher.flush_log()
        after_loss = disk.after_power_cut(Random(1), Loss.ALL)
        there = await caller.bodies()
    async with Broker(config, clock, disk=after_loss) as broker:
        assert bodies(await Popper(await caller_to(broker), clock).pop()) == sorted(there)


@pytest.mark.parametrize(
    ("change", "left"),
    [(DeleteGroup(group="g", remove_offsets=True), None), (UpdateConsumerOffset("g", "orders", 0, 2), 2)],
)
async def test_a_copy_that_is_flushed_after_a_deletion_or_reset_finishes_nothing(
    config, clock, caller_to, change, left
):
    config = replace(config, store=replace(config.store, flush=FlushMode.SYNC))
    async with Broker(config, clock, disk=SimulatedDisk()) as broker:
        caller = await caller_to(broker)

        async def flushed(header, body=b""):
            response = caller.channel.call_soon(header, body, timeout=30)
            await committed(caller, group="another")  # comes behind all that the request has led to
            while not response.done():
                broker.store.flush_due()
                await asyncio.sleep(0)
            assert (await response).code == 0

        await caller.create_topic("orders", queues=1)
        for body in (b"a", b"b"):
            await flushed(send_header(topic="orders"), body)
        await Popper(caller, clock).pop(1, invisible_ms=1_000)
        await after(clock, 1)  # the message is copied, and the copy waits for its flush
        await flushed(change)
        await after(clock, 0)
        broker.store.flush_due()
        await after(clock, 0)
        assert broker.pops.in_flight.count == 0
        assert broker.offsets.find("g", "orders", 0) == left


async def test_a_message_is_finished_only_when_its_copy_is_replicated(broker, orders, popper, clock):
    await send(orders, "a")
    await popper.pop(invisible_ms=1_000)
    broker.confirmation.require_replicas(ReplicaRule(timeout_seconds=1))
    await after(clock, 10)
    assert broker.offsets.find("g", "orders", 0) == 0
    assert broker.store.next_offset(pop_retry_topic("g", "orders"), 0) == 1
    broker.confirmation.require_replicas(None)
    await after(clock, 30)
    assert b"a" in bodies(await popper.pop())


def fill_disk(disk, *, is_full=True):
    """Let a disk refuse the records of pops, or take them again."""
    disk.refuse = lambda kind, path: errno.ENOSPC if is_full and (kind, path.parent.name) == ("write", "pops") else None


async def test_pops_that_a_full_disk_refuses_leave_no_trace(config, clock, caller_to):
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await send(caller, "a", "b")
        popper = Popper(caller, clock)
        for body in (b"a", b"b"):
            fill_disk(disk)
            assert "No space left" in (await caller.ask(popper.header(1), code=14)).remark
            fill_disk(disk, is_full=False)
            assert bodies(await popper.pop(1)) == [body]
        left = disk.after_kill()
    async with Broker(config, clock, disk=left) as broker:
        assert await Popper(await caller_to(broker), clock).pop() == []


async def test_a_pop_that_a_full_disk_refuses_at_its_second_queue_gets_the_first(config, clock, caller_to):
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=2)
        popper = Popper(caller, clock)
        assert await popper.pop() == []
        for queue_id, text in enumerate("ab"):
            await send(caller, text, queue_id=queue_id)
        writes = []

        def refuse(kind, path):
            if (kind, path.parent.name) == ("write", "pops"):
                writes.append(path)
                return errno.ENOSPC if len(writes) > 1 else None
            return None

        disk.refuse = refuse
        first = await popper.pop()
        disk.refuse = lambda kind, path: None
        assert bodies([*first, *await popper.pop()]) == [b"a", b"b"]


async def test_a_reset_that_a_full_disk_did_not_take_outlives_a_kill_after_the_disk_has_room(config, clock, caller_to):
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await send(caller, *"abc")
        await Popper(caller, clock).ack(*await Popper(caller, clock).pop())
        fill_disk(disk)
        await caller.ask(UpdateConsumerOffset("g", "orders", 0, 0))
        fill_disk(disk, is_full=False)
        await after(clock, 10)
        left = disk.after_kill()
    async with Broker(config, clock, disk=left) as broker:
        assert bodies(await Popper(await caller_to(broker), clock).pop()) == [b"a", b"b", b"c"]


async def test_an_acknowledgement_that_a_full_disk_did_not_take_outlives_a_stop_with_room(config, clock, caller_to):
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await send(caller, "a", "b")
        _, b = await Popper(caller, clock).pop(invisible_ms=10_000)
        fill_disk(disk)
        await Popper(caller, clock).ack(b)
        await after(clock, 0)
        fill_disk(disk, is_full=False)
    async with Broker(config, clock, disk=disk.after_kill()) as broker:
        await after(clock, 10)
        assert bodies(await Popper(await caller_to(broker), clock).pop()) == [b"a"]
