"""Queue locks: who gets them, who keeps them, when they may be taken over, and what the end of a connection does."""

import pytest

from pyromq.broker.consuming import queue_locks
from pyromq.broker.consuming.queue_locks import GRACE_SECONDS, QueueLockProcessor, QueueLocks
from pyromq.errors import LimitReached
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import LockedQueues, QueueLock, WireQueue, decode_body, encode_body
from pyromq.remoting.command import Call
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import LockQueues, UnlockQueues
from pyromq.remoting.remoting_session import RemotingSession
from pyromq.testing import FakeClock

FIRST, SECOND = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def locks(clock):
    return QueueLocks(clock)


@pytest.fixture
def connect(clock):
    return lambda: RemotingSession(
        Dispatcher(), clock, address=("127.0.0.1", 1), wake=lambda: None, run_soon=lambda work, *args: work(*args)
    )


def test_a_free_queue_is_granted_and_then_refused_to_others(locks):
    assert locks.lock("g", "me", [FIRST, SECOND]) == [FIRST, SECOND]
    assert locks.lock("g", "you", [FIRST]) == []
    assert locks.lock("g", "me", [FIRST]) == [FIRST]


def test_groups_do_not_disturb_each_other(locks):
    locks.lock("g", "me", [FIRST])
    assert locks.lock("other", "you", [FIRST]) == [FIRST]


async def test_a_silent_owner_loses_its_lock_after_more_than_a_minute(locks, clock):
    locks.lock("g", "me", [FIRST])
    await clock.advance(60)
    assert locks.lock("g", "you", [FIRST]) == []
    await clock.advance(0.001)
    assert locks.lock("g", "you", [FIRST]) == [FIRST]


async def test_asking_again_keeps_the_lock(locks, clock):
    locks.lock("g", "me", [FIRST])
    await clock.advance(50)
    locks.lock("g", "me", [FIRST])
    await clock.advance(50)
    assert locks.lock("g", "you", [FIRST]) == []


async def test_a_lock_is_as_old_as_its_first_grant(locks, clock):
    for _ in range(2):
        locks.lock("g", "me", [FIRST])
        await clock.advance(30)
    assert locks.holders("g") == {FIRST: ("me", 60)}


async def test_a_new_master_keeps_a_lock_as_long_as_the_former_one_would(locks, clock):
    locks.lock("g", "me", [FIRST])
    await clock.advance(50)
    other = QueueLocks(clock)
    other.adopt(locks.encode_changed(None))
    await clock.advance(10)
    assert other.lock("g", "you", [FIRST]) == []
    await clock.advance(0.001)
    assert other.lock("g", "you", [FIRST]) == [FIRST]


def test_only_the_owner_unlocks(locks):
    locks.lock("g", "me", [FIRST])
    locks.unlock("g", "you", [FIRST])
    assert locks.lock("g", "you", [FIRST]) == []
    locks.unlock("g", "me", [FIRST, SECOND])
    assert locks.lock("g", "you", [FIRST]) == [FIRST]


# -- telling those who were refused


def told(session):
    """How often this connection was told to share anew."""
    return b"".join(map(bytes, session.take_output())).count(b'"code":40,')


async def test_a_refused_member_is_told_once_when_the_queue_is_given_back(locks, connect):
    mine, yours = connect(), connect()
    locks.lock("g", "me", [FIRST, SECOND], asker=mine)
    locks.lock("g", "you", [FIRST, SECOND], asker=yours)
    locks.unlock("g", "me", [FIRST])
    assert locks.notify_refused() == pytest.approx(60, abs=0.1)  # when the second one may be free
    assert (told(yours), told(mine)) == (1, 0)
    locks.notify_refused()
    assert told(yours) == 0


async def test_a_refused_member_is_told_when_the_lock_of_a_dead_one_has_ended(locks, connect, clock):
    mine, yours = connect(), connect()
    locks.lock("g", "me", [FIRST], asker=mine, tied=True)
    locks.lock("g", "you", [FIRST], asker=yours)
    mine.close("killed")
    await clock.advance(locks.alarm.seconds_left)
    assert locks.notify_refused() is None
    assert told(yours) == 1


def test_refused_members_that_were_told_leave_room_for_others(clock, connect):
    locks = QueueLocks(clock, most=1)
    for _ in range(2):
        locks.lock("g", "me", [FIRST])
        refused = connect()
        locks.lock("g", "you", [FIRST], asker=refused)
        locks.unlock("g", "me", [FIRST])
        locks.notify_refused()
        assert refused.take_output()


def test_refused_members_that_have_left_leave_room_for_others(clock, connect):
    locks = QueueLocks(clock, most=2)
    locks.lock("g", "me", [FIRST])
    for _ in range(2):
        locks.lock("g", "gone", [FIRST], asker=(gone := connect()))
        gone.close("killed")
    locks.expire()
    locks.lock("g", "you", [FIRST], asker=(you := connect()))
    locks.unlock("g", "me", [FIRST])
    locks.notify_refused()
    assert told(you) == 1


async def test_a_refused_client_hears_of_the_freed_queue_at_once(broker, caller_to):
    def asked(client_id):
        queues = [WireQueue(topic="orders", broker_name="broker-a", queue_id=0)]
        return encode_body(QueueLock(group="g", client_id=client_id, queues=queues))

    holder, other = await caller_to(broker), await caller_to(broker)
    await holder.ask(LockQueues(), asked("holder"))
    await other.ask(LockQueues(), asked("other"))
    await holder.ask(UnlockQueues(), asked("holder"))
    assert await other.notices.get() == "g"


# -- tied to a connection


async def test_a_tied_lock_ends_with_its_connection(locks, connect, clock):
    mine = connect()
    locks.lock("g", "me", [FIRST], asker=mine, tied=True)
    locks.lock("other", "me", [SECOND], asker=mine, tied=True)
    mine.close("killed")
    await clock.advance(GRACE_SECONDS + 0.01)
    assert locks.lock("g", "you", [FIRST]) == [FIRST]
    assert locks.lock("other", "you", [SECOND]) == [SECOND]


async def test_a_holder_that_comes_back_at_once_keeps_its_lock(locks, connect, clock):
    mine, again = connect(), connect()
    locks.lock("g", "me", [FIRST], asker=mine, tied=True)
    mine.close("cut")
    await clock.advance(GRACE_SECONDS - 0.01)
    assert locks.lock("g", "you", [FIRST]) == []
    assert locks.lock("g", "me", [FIRST], asker=again, tied=True) == [FIRST]
    await clock.advance(30)
    assert locks.lock("g", "you", [FIRST]) == []


async def test_a_lock_that_is_not_tied_outlives_the_connection(locks, connect, clock):
    mine, yours = connect(), connect()
    locks.lock("g", "me", [FIRST], asker=mine, tied=True)
    locks.lock("g", "java", [SECOND])
    mine.close("killed")
    await clock.advance(GRACE_SECONDS + 0.01)
    assert locks.lock("g", "you", [FIRST, SECOND], asker=yours, tied=True) == [FIRST]


async def test_a_lock_asked_for_again_over_another_connection_is_tied_to_that_one(locks, connect, clock):
    old, new = connect(), connect()
    locks.lock("g", "me", [FIRST], asker=old, tied=True)
    locks.lock("g", "me", [FIRST], asker=new, tied=True)
    old.close("replaced")
    await clock.advance(GRACE_SECONDS + 0.01)
    assert locks.lock("g", "you", [FIRST]) == []
    new.close("killed")
    await clock.advance(GRACE_SECONDS + 0.01)
    assert locks.lock("g", "you", [FIRST]) == [FIRST]


async def test_a_lock_asked_for_again_without_the_tie_is_free_of_it(locks, connect, clock):
    mine = connect()
    locks.lock("g", "me", [FIRST], asker=mine, tied=True)
    locks.lock("g", "me", [FIRST])
    mine.close("killed")
    await clock.advance(GRACE_SECONDS + 0.01)
    assert locks.lock("g", "you", [FIRST]) == []


async def test_the_end_of_a_connection_frees_nothing_that_others_took_over(locks, connect, clock):
    mine, yours = connect(), connect()
    locks.lock("g", "me", [FIRST, SECOND], asker=mine, tied=True)
    locks.unlock("g", "me", [FIRST])
    locks.lock("g", "you", [FIRST], asker=yours, tied=True)
    mine.close("killed")
    await clock.advance(GRACE_SECONDS + 0.01)
    assert locks.lock("g", "they", [FIRST, SECOND]) == [SECOND]


async def test_a_tied_lock_also_ends_after_a_minute_of_silence(locks, connect, clock):
    locks.lock("g", "me", [FIRST], asker=connect(), tied=True)
    await clock.advance(60.5)
    assert locks.lock("g", "you", [FIRST]) == [FIRST]


@pytest.mark.parametrize("tied", [True, False])
async def test_over_the_wire_the_holder_chooses(broker, caller_to, tied, clock):
    def asked(client_id):
        queues = [WireQueue(topic="orders", broker_name="broker-a", queue_id=0)]
        return encode_body(QueueLock(group="g", client_id=client_id, queues=queues, tied_to_connection=tied))

    killed, other = await caller_to(broker), await caller_to(broker)
    await killed.ask(LockQueues(), asked("killed"))
    await killed.beat("killed", group="g")
    await other.beat("other", group="g")
    await other.notices.get()  # it has joined
    await killed.channel.close()
    assert await other.notices.get() == "g"
    await clock.advance(GRACE_SECONDS + 0.01)
    locked = decode_body(LockedQueues, (await other.ask(LockQueues(), asked("other"))).body)
    assert len(locked.queues) == tied


async def test_a_refused_client_that_asks_for_the_tie_is_told_who_holds_the_lock(broker, caller_to, clock):
    def asked(client_id, tied):
        queues = [WireQueue(topic="orders", broker_name="broker-a", queue_id=0)]
        return encode_body(QueueLock(group="g", client_id=client_id, queues=queues, tied_to_connection=tied))

    caller = await caller_to(broker)
    await caller.ask(LockQueues(), asked("holder", True))
    await clock.advance(3)
    response = await caller.ask(LockQueues(), asked("other", True))
    (refused,) = decode_body(LockedQueues, response.body).refused
    assert (refused.queue.queue, refused.client_id, refused.age_ms) == (FIRST, "holder", 3000)
    assert b"refused" not in (await caller.ask(LockQueues(), asked("java", False))).body


def queues_of(topic, count):
    return [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(count)]


def test_a_holder_that_unlocks_before_the_refusal_is_answered_is_not_named(locks, connect):
    locks.lock("g", "me", [FIRST, SECOND])
    asked = QueueLock("g", "you", [WireQueue.of(FIRST), WireQueue.of(SECOND)], tied_to_connection=True)
    header, body = LockQueues(), encode_body(asked)
    locking = QueueLockProcessor(locks).lock(header, Call(0, header=header, body=body, peer=connect()))
    locking.send(None)  # the answer waits for the next slice of time
    locks.unlock("g", "me", [FIRST])
    with pytest.raises(StopIteration) as ended:
        while True:
            locking.send(None)
    locked = decode_body(LockedQueues, ended.value.value.body)
    assert [(each.queue.queue, each.client_id) for each in locked.refused] == [(SECOND, "me")]


def test_a_group_has_its_share_of_locks_and_the_next_one_finds_some(clock):
    locks = QueueLocks(clock, most=100)
    assert len(locks.lock("g", "me", queues_of("orders", 10))) == 10
    with pytest.raises(LimitReached, match=r"group g locked 10 queues.*raise maxQueueLocks \(now 100\)"):
        locks.lock("g", "me", queues_of("more", 1))
    assert locks.lock("g", "me", [FIRST]) == [FIRST]
    assert len(locks.lock("h", "me", queues_of("orders", 9))) == 9
    locks.unlock("g", "me", queues_of("orders", 10))
    assert len(locks.lock("g", "me", queues_of("orders", 9))) == 9


async def test_tied_locks_before_a_limit_end_with_their_connection(connect, clock):
    locks, mine = QueueLocks(clock, most=20), connect()
    with pytest.raises(LimitReached):
        locks.lock("g", "me", queues_of("orders", 3), asker=mine, tied=True)
    mine.close("killed")
    await clock.advance(GRACE_SECONDS + 0.01)
    assert locks.lock("g", "you", [FIRST, SECOND]) == [FIRST, SECOND]


async def test_locks_that_have_ended_leave_room(clock):
    locks = QueueLocks(clock, most=1)
    locks.lock("g", "me", [FIRST])
    with pytest.raises(LimitReached):
        locks.lock("h", "me", [FIRST])
    await clock.advance(61)
    locks.expire()
    assert locks.lock("h", "me", [FIRST]) == [FIRST]


async def test_many_queues_are_locked_in_slices_in_the_order_asked(orders, monkeypatch):
    monkeypatch.setattr(queue_locks, "AT_ONCE", 2)
    asked = QueueLock(group="g", client_id="me", queues=[WireQueue.of(queue) for queue in queues_of("orders", 5)])
    locked = decode_body(LockedQueues, (await orders.ask(LockQueues(), encode_body(asked))).body)
    assert [wire.queue for wire in locked.queues] == queues_of("orders", 5)
    await orders.ask(UnlockQueues(), encode_body(asked))
    other = QueueLock(group="g", client_id="you", queues=asked.queues)
    locked = decode_body(LockedQueues, (await orders.ask(LockQueues(), encode_body(other))).body)
    assert len(locked.queues) == 5
