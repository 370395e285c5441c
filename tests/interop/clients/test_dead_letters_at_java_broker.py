"""Dead letters that the genuine broker keeps: found by us, and sent again to their group."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from tests.interop.peers.servers import GenuineServers

from pyromq import AsyncConsumer, AsyncProducer, ConsumeFrom, ConsumerConfig, GiveUp, Message, StoredMessage
from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters, DeadLetter, Fate

pytestmark = pytest.mark.interop

SECONDS = 30.0


async def test_a_redriven_message_reaches_its_group_once_more(genuine: GenuineServers, topic: str) -> None:
    group = f"dlq-{topic}"
    async with AsyncProducer("sender", genuine.namesrv) as producer:
        sent = await producer.send(Message(topic, b"hello", tags="a", keys="7"))
    await first_message(genuine, topic, group, fail=True)

    async with AsyncDeadLetters(genuine.namesrv) as dead_letters:
        (letter,) = await letters(dead_letters, group)
        assert (await dead_letters.find(group, sent.message_id)).message.log_offset == letter.message.log_offset
        async with aclosing(dead_letters.redrive(group)) as outcomes:
            fates = [outcome.fate async for outcome in outcomes]
        message = await first_message(genuine, topic, group, fail=False)
        async with aclosing(dead_letters.redrive(group)) as outcomes:
            fates += [outcome.fate async for outcome in outcomes]

    assert letter.original_topic == topic
    assert fates == [Fate.SENT, Fate.REDRIVEN_BEFORE]
    assert (message.message_id, message.topic, message.body) == (sent.message_id, topic, b"hello")
    assert (message.tags, message.keys, message.reconsume_times) == ("a", ["7"], 0)


async def first_message(genuine: GenuineServers, topic: str, group: str, *, fail: bool) -> StoredMessage:
    """Return what a new member of the group gets first; it then gives up on it, or not."""
    got: asyncio.Queue[StoredMessage] = asyncio.Queue()

    async def work(messages: list[StoredMessage]) -> None:
        got.put_nowait(messages[0])
        if fail:
            raise GiveUp("on purpose")

    consumer = AsyncConsumer(group, genuine.namesrv, config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    consumer.subscribe(topic, work)
    async with consumer:
        return await asyncio.wait_for(got.get(), SECONDS)


async def letters(dead_letters: AsyncDeadLetters, group: str) -> list[DeadLetter]:
    """The genuine broker shows a message up to 0.1 s after it has stored it, a new topic's route a moment later."""
    async with asyncio.timeout(SECONDS):
        while True:
            async with aclosing(dead_letters.letters(group)) as found:
                if complete := [letter async for letter in found]:
                    return complete
            await asyncio.sleep(0.1)
