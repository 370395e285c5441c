"""A broker that is killed between any two writes of a burst of sends that compiled code stores.

Nobody sees these writes one by one: the record, its entry in the queue, then the next one. But what a kill leaves can
be told from what they leave together: the log up to any byte, and the entries of the records before.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyromq import speedups
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import SendMessageV2
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.store_config import StoreConfig

from ..store.making import bodies, fill, opened
from .disk import Image, file_of, image_of, restore

SIZES = {"segment_bytes": 1 << 16, "consume_queue_entries": 200, "index_slots": 50, "index_entries": 200}
QUEUES, SENDS = 2, 4
ENTRY_BYTES = 20
ENTRY_WRITES = (0, 8, 12)  # of an entry's bytes written before a kill: log offset, size and hash are one write each
LOG, QUEUE = f"commitlog/{0:020}", "consumequeue/Topic/{}/" + f"{0:020}"


def send(number: int) -> SendMessageV2:
    return SendMessageV2(
        producer_group="p",
        topic="Topic",
        default_topic="TBW102",
        default_topic_queue_count=QUEUES,
        queue_id=number % QUEUES,
        sys_flag=0,
        born_ms=1,
        flag=0,
        properties=f"KEYS\x01k{number}\x02TAGS\x01a",
    )


async def burst(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Image, Image, int]:
    """Return the broker's folder before and after a burst, and how many of its records plain code wrote."""
    config = BrokerConfig(folder, port=0, store=StoreConfig(folder, **SIZES))  # type: ignore[arg-type]
    async with Broker(config) as broker:
        channel = await connect(broker.address, Dispatcher(), SystemClock())
        for number in range(QUEUES):  # the topic, its queues and the room for them are made
            (await channel.call(send(number), b"first %d" % number, timeout=30)).check()
        written: list[int] = []
        for name in ("append", "append_batch"):
            monkeypatch.setattr(CommitLog, name, counted(getattr(CommitLog, name), written))
        before = image_of(folder)
        asked = [channel.call_soon(send(number), b"body %d" % number, timeout=30) for number in range(SENDS)]
        for answer in await asyncio.gather(*asked):
            answer.check()
        after = image_of(folder)
        await channel.close()
    return before, after, len(written)


def counted(append: Callable[..., None], written: list[int]) -> Callable[..., None]:
    def wrapped(log: CommitLog, messages: object) -> None:
        written.extend([1] * (len(messages) if isinstance(messages, list) else 1))
        append(log, messages)

    return wrapped


def entries(image: Image) -> list[tuple[int, int, str, int]]:
    """Return log offset, size, file and place of each entry of the topic, in the order in which they were written."""
    found = []
    for queue_id in range(QUEUES):
        name = QUEUE.format(queue_id)
        content = image[name].content()
        for place in range(0, len(content), ENTRY_BYTES):
            log_offset, size = struct.unpack_from(">qi", content, place)
            if size:
                found.append((log_offset, size, name, place))
    return sorted(found)


def kills(before: Image, after: Image) -> Iterator[tuple[int, Image]]:
    """Yield what each kill leaves, and how many records of the burst are whole by then."""
    known = len(entries(before))
    old, new = before[LOG].content(), after[LOG].content()
    queues = {QUEUE.format(queue_id): before[QUEUE.format(queue_id)].content() for queue_id in range(QUEUES)}
    for count, (log_offset, size, name, place) in enumerate(entries(after)[known:]):
        end = log_offset + size
        for cut in sorted({log_offset, log_offset + 1, log_offset + 4, log_offset + 88, end - 1}):
            yield count, left(before, new[:cut] + old[cut:], queues)
        content = after[name].content()
        for written in ENTRY_WRITES:
            entry = {name: queues[name][:place] + content[place : place + written] + queues[name][place + written :]}
            yield count + 1, left(before, new[:end] + old[end:], queues | entry)
        queues[name] = content[: place + ENTRY_BYTES] + queues[name][place + ENTRY_BYTES :]
    yield SENDS, left(before, new, queues)


def left(before: Image, log: bytes, queues: dict[str, bytes]) -> Image:
    return {**before, LOG: file_of(log), **{name: file_of(content) for name, content in queues.items()}}


@pytest.mark.slow
async def test_whole_records_are_kept_and_the_store_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, after, plain = await burst(tmp_path / "burst", monkeypatch)
    assert plain == (0 if speedups.is_active else SENDS)
    for number, (count, image) in enumerate(kills(before, after)):
        folder = tmp_path / str(number)
        restore(image, folder)
        expected = {queue_id: [b"first %d" % queue_id] for queue_id in range(QUEUES)}
        for sent in range(count):
            expected[sent % QUEUES].append(b"body %d" % sent)
        with opened(folder, **SIZES) as store:
            assert {queue_id: bodies(store, queue_id, topic="Topic") for queue_id in range(QUEUES)} == expected
            fill(store, 3)
        with opened(folder, **SIZES) as store:
            assert {queue_id: bodies(store, queue_id, topic="Topic") for queue_id in range(QUEUES)} == expected
            assert len(bodies(store, 0)) == 2
