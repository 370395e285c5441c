"""What our consumers do with messages that are not what was stored: never hand them out as good, tell, go on.

Bits are flipped in the log of a running broker, which sends what it finds there as any broker of RocketMQ does.
"""

import random

import pytest
from tests.waiting import until

from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters, Fate
from pyromq.client.client_config import ConsumerConfig, Damaged, ProducerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.pulling import MessageDamaged
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.errors import TopicNotFound
from pyromq.message import Message

BODIES = [f"message {n} of ten".encode() for n in range(10)]
HEAD_BYTES = 88  # before the body of a record with IPv4 addresses
BAD = 4  # the number of the damaged message


async def fill(cluster, **fields):
    """Store ten messages in one queue; return where they went."""
    producer = await cluster.producer()
    return [await producer.send(Message("orders", body, **fields), ordering_key="k") for body in BODIES]


def flip(cluster, body, byte, mask=1):
    """Flip bits of one byte of the record that holds a body; byte 0 is the body's first."""
    while not cluster.broker.store.index_step(1.0):  # the disk goes bad after the broker has read what it wrote
        pass
    (path,) = (cluster.broker.config.data / "commitlog").iterdir()
    with path.open("r+b") as file:
        place = file.read().index(body) + byte
        file.seek(place)
        (found,) = file.read(1)
        file.seek(place)
        file.write(bytes([found ^ mask]))


def log_offset(sent):
    return int(sent.offset_message_id[-16:], 16)


class Work:
    """Keeps the bodies it is given."""

    def __init__(self, cluster, **config):
        self.bodies = []
        settings = ConsumerConfig(commit_seconds=0.01, retry_seconds=0.01, **config)
        self.consumer = AsyncConsumer("workers", cluster.namesrv, config=settings)
        self.consumer.subscribe("orders", lambda messages: self.bodies.extend(each.body for each in messages))


SOUND = BODIES[:BAD] + BODIES[BAD + 1 :]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_damaged_body_is_told_counted_and_passed_over(cluster, orderly, caplog):
    sent = await fill(cluster)
    flip(cluster, BODIES[BAD], 3)
    work = Work(cluster, orderly=orderly, concurrency=1)
    async with work.consumer as consumer:
        await until(lambda: work.bodies == SOUND)
        assert consumer.damaged_count == 1
        await until(lambda: consumer._assigned[sent[0].queue].committed == 10)
    place = f"{sent[0].queue}, queue offset {BAD}, log offset {log_offset(sent[BAD])}: its body does not match"
    assert f"group workers: damaged message in {place}" in caplog.text
    assert "is skipped" in caplog.text


async def test_without_verification_it_is_handed_out_as_found(cluster):
    await fill(cluster)
    flip(cluster, BODIES[BAD], 3)
    work = Work(cluster, verify_checksums=False)
    async with work.consumer as consumer:
        await until(lambda: len(work.bodies) == 10)
        assert (consumer.damaged_count, BODIES[BAD] in work.bodies) == (0, False)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_with_stop_nothing_behind_it_is_consumed_and_who_waits_is_told(cluster, orderly):
    sent = await fill(cluster)
    flip(cluster, BODIES[BAD], 3)
    work = Work(cluster, orderly=orderly, concurrency=1, damaged=Damaged.STOP)
    with pytest.raises(MessageDamaged, match=f"log offset {log_offset(sent[BAD])}") as told:
        async with work.consumer as consumer:
            await consumer.wait()
    assert (told.value.damaged.queue_offset, work.bodies) == (BAD, BODIES[:BAD])
    reader = await cluster.consumer("workers")
    assert await reader.committed(sent[0].queue) == BAD


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_as_a_dead_letter_it_tells_what_is_wrong_and_is_not_redriven(cluster, orderly):
    sent = await fill(cluster)
    flip(cluster, BODIES[BAD], 3)
    work = Work(cluster, orderly=orderly, concurrency=1, damaged=Damaged.DEAD_LETTER)
    async with work.consumer as consumer:
        await until(lambda: work.bodies == SOUND)
        assert consumer.damaged_count == 1
    async with AsyncDeadLetters(cluster.namesrv) as dead_letters:
        (letter,) = [each async for each in dead_letters.letters("workers")]
        (outcome,) = [each async for each in dead_letters.redrive("workers")]
    assert letter.message.message_id == sent[BAD].message_id
    assert f"queue offset {BAD}, log offset {log_offset(sent[BAD])}" in letter.reason
    assert letter.message.properties["DAMAGED"] == "its body does not match its checksum"
    assert outcome.fate is Fate.FAILED
    assert "damaged" in str(outcome.error)


class _Missing:
    """A group's retry topic that is there when a dead letter is written for the second time."""

    def __init__(self, policy):
        self.calls = 0
        self._write, policy._send_back.make_dead_letter = policy._send_back.make_dead_letter, self.write

    async def write(self, message, reason):
        self.calls += 1
        if self.calls == 1:
            raise TopicNotFound("No topic route info in name server for the topic: %RETRY%workers")
        await self._write(message, reason)


async def test_a_missing_retry_topic_resets_no_queue(cluster):
    await fill(cluster)
    flip(cluster, BODIES[BAD], 3)
    work = Work(cluster, pull_count=2, concurrency=1, damaged=Damaged.DEAD_LETTER)
    missing = _Missing(work.consumer._damage)
    async with work.consumer:
        await until(lambda: BODIES[-1] in work.bodies)
    assert (work.bodies, missing.calls) == (SOUND, 2)


async def test_a_missing_retry_topic_resets_no_queue_of_a_pull_consumer(cluster):
    (first, *_) = await fill(cluster)
    flip(cluster, BODIES[BAD], 3)
    config = ConsumerConfig(damaged=Damaged.DEAD_LETTER, retry_seconds=0.01, pull_count=2)
    async with AsyncPullConsumer("workers", cluster.namesrv, config=config) as consumer:
        missing = _Missing(consumer._fetching._damage)
        await consumer.assign([first.queue])
        bodies = []
        while BODIES[-1] not in bodies:
            bodies += [message.body for message in await consumer.poll()]
    assert (bodies, missing.calls) == (SOUND, 2)


async def test_a_pull_consumer_passes_over_and_counts(cluster):
    (first, *_) = await fill(cluster)
    flip(cluster, BODIES[BAD], 3)
    consumer = await cluster.consumer("readers")
    await consumer.assign([first.queue])
    assert [message.body for message in await consumer.poll()] == SOUND
    assert (consumer.damaged_count, consumer.position(first.queue)) == (1, 10)


async def test_a_pull_consumer_stops_until_somebody_seeks_behind(cluster):
    (first, *_) = await fill(cluster)
    flip(cluster, BODIES[BAD], 3)
    config = ConsumerConfig(damaged=Damaged.STOP, retry_seconds=0.01)
    async with AsyncPullConsumer("readers", cluster.namesrv, config=config) as consumer:
        await consumer.assign([first.queue])
        assert [message.body for message in await consumer.poll()] == BODIES[:BAD]
        for _ in range(2):
            with pytest.raises(MessageDamaged, match=f"queue offset {BAD}") as told:
                await consumer.poll()
        assert consumer.position(first.queue) == BAD
        await consumer.seek(first.queue, told.value.damaged.queue_offset + 1)
        assert [message.body for message in await consumer.poll()] == BODIES[BAD + 1 :]


async def test_a_single_pull_tells_what_is_damaged_apart(cluster):
    bad = (await fill(cluster))[BAD]
    flip(cluster, BODIES[BAD], 3)
    async with AsyncQueueReader("readers", cluster.namesrv) as reader:
        found = await reader.pull(bad.queue, 0)
        assert await reader.store_time_at(bad.queue, BAD) is not None
    assert [message.body for message in found.messages] == SOUND
    (damaged,) = found.damaged
    assert (damaged.queue, damaged.queue_offset, damaged.message.message_id) == (bad.queue, BAD, bad.message_id)


@pytest.mark.parametrize("byte", [-85, -81, -4, -2, len(BODIES[0]), len(BODIES[0]) + 7], ids=str)
async def test_behind_a_record_that_cannot_be_read_all_goes_on(cluster, byte):
    """Size, magic, lengths of body (twice), topic and properties: damage that hides where a record ends."""
    (first, *_) = await fill(cluster)
    flip(cluster, BODIES[BAD], byte, 0x41)
    work = Work(cluster, concurrency=1)
    async with work.consumer as consumer:
        await until(lambda: work.bodies == SOUND)
        assert consumer.damaged_count == 1
        await until(lambda: consumer._assigned[first.queue].committed == 10)


@pytest.mark.parametrize("number", [0, BAD, 9])
async def test_a_record_of_another_place_is_damaged(cluster, number):
    (first, *_) = await fill(cluster)
    flip(cluster, BODIES[number], 20 + 7 - HEAD_BYTES, 0x40)  # its queue offset
    work = Work(cluster, concurrency=1)
    async with work.consumer as consumer:
        await until(lambda: work.bodies == BODIES[:number] + BODIES[number + 1 :])
        await until(lambda: consumer._assigned[first.queue].committed == 10)
        assert consumer.damaged_count == 1


async def test_any_damage_of_a_body_is_found(cluster):
    """Seeded, and printed where it fails: bits and bytes of stored bodies, compressed and not, some batched."""
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    producer = await cluster.producer(config=ProducerConfig(compress_from_bytes=200))
    bodies = [dice.randbytes(dice.randrange(8, 400)) for _ in range(64)]
    for body in bodies[:32]:
        await producer.send(Message("orders", body), ordering_key="k")
    await producer.send_batch([Message("orders", body) for body in bodies[32:]], ordering_key="k")
    async with AsyncQueueReader("readers", cluster.namesrv) as reader:
        (queue,) = [q for q, (_, end) in (await reader.bounds(["orders"])).items() if end]
        stored = [each.stored_body for each in (await pulled(reader, queue))[0]]
        bad = dice.sample(range(64), 8)
        for number in bad:
            flip(cluster, stored[number], dice.randrange(len(stored[number])), dice.randrange(1, 256))
        messages, damaged = await pulled(reader, queue)
    assert [each.queue_offset for each in damaged] == sorted(bad), seed
    assert [each.body for each in messages] == [each for n, each in enumerate(bodies) if n not in bad], seed


async def pulled(reader, queue):
    messages, damaged = [], []
    for offset in (0, 32):
        found = await reader.pull(queue, offset)
        messages += found.messages
        damaged += found.damaged
    return messages, damaged


async def test_compressed_batched_tagged_and_retried_messages_pass(cluster):
    producer = await cluster.producer(config=ProducerConfig(compress_from_bytes=100))
    await producer.send(Message("orders", b"x" * 5000, tags="a"))
    await producer.send(Message("orders", b"not wanted", tags="b"))
    await producer.send_batch([Message("orders", b"%d" % n, tags="a") for n in range(5)])
    await producer.send(Message("orders", b"y" * 5000, tags="a", delay_level=1))
    calls = []

    def work(messages):
        calls.append(messages[0])
        if len(calls) <= 3:
            raise ValueError

    consumer = AsyncConsumer("workers", cluster.namesrv)
    consumer.subscribe("orders", work, tags="a")
    async with consumer:
        await until(lambda: len(calls) >= 6)
        for _ in range(3):
            await cluster.clock.advance(6)
        await until(lambda: len(calls) == 10)
        assert consumer.damaged_count == 0
