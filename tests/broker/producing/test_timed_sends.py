"""Sends with a time of delivery: answered, stored and filed alike, whether compiled parts take them or the plain path.

A request in a form that no client writes is left alone by the compiled parts: what it asks for is the same.
"""

import asyncio
import re
import socket
import struct
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from tests.broker.headers import send_header
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.names import TIMER_TOPIC, dead_letter_topic
from pyromq.net.listening import new_serving_loop
from pyromq.remoting.command import encode_request
from pyromq.remoting.headers import CreateTopic, SaveBrokerSettings
from pyromq.store.store_config import StoreConfig
from pyromq.testing import FakeClock

NOW = 1_700_000_000_000
LIMIT_MS = 30 * 86_400_000
HOUR_MS = 3_600_000
LENGTH = struct.Struct(">I")
TIMED = "UNIQ_KEY\x01K1\x02TIMER_DELIVER_MS\x01%d"


@dataclass
class Outcome:
    """What sends led to, without the times and addresses that no two runs have in common."""

    answers: list[bytes]
    records: list[bytes]
    queue: list[tuple[int, ...]]
    pending: dict[str, int]
    counted: list[tuple[str, int, int, int]]
    entries: dict[str, bytes] = field(default_factory=dict)
    checkpoint: bytes = b""


def frame(header, body=b"body", *, opaque=1, is_usual=True):
    """Return a request as clients write it, or else with the code at its header's end."""
    content = encode_request(header, body, opaque=opaque, flag=0)
    size = LENGTH.unpack_from(content, 4)[0]
    text = content[8 : 8 + size]
    if not is_usual:
        code, _, rest = text[1:-1].partition(b",")
        text = b"{%b,%b}" % (rest, code)
    return LENGTH.pack(4 + size + len(body)) + LENGTH.pack(size) + text + body


async def answers_of(address, frames):
    """Write all at once; return the answers, without what they say of ports."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(frames))
    answers = [await reader.readexactly(LENGTH.unpack(await reader.readexactly(4))[0]) for _ in range(len(frames))]
    writer.close()
    await writer.wait_closed()
    return [
        re.sub(rb'(?<="msgId":"7F000001)\w{8}|(?<=127.0.0.1:)\d+|^....', b"", answer, flags=re.S) for answer in answers
    ]


def without_addresses(record):
    return bytes(record[:48]) + bytes(record[56:64]) + bytes(record[72:])


async def play(requests, *, is_usual):
    """Let a broker of its own answer sends, some at a time; return what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        store = StoreConfig(Path(folder), segment_bytes=1 << 20, consume_queue_entries=1000, index_enabled=False)
        clock = FakeClock(NOW)
        async with Broker(BrokerConfig(Path(folder), port=0, store=store), clock) as broker:
            for topic in ("orders", "more", dead_letter_topic("g")):
                create = CreateTopic(topic=topic, read_queues=4, write_queues=4, permission=6)
                await answers_of(broker.address, [frame(create, b"")])
            first = send_header("a\x011"), send_header(TIMED % (NOW + HOUR_MS))  # queues are there from now on
            await answers_of(broker.address, [frame(header, is_usual=False) for header in first])
            frames = [frame(header, opaque=n, is_usual=is_usual) for n, header in enumerate(requests)]
            answers = [
                each for n in range(0, len(frames), 50) for each in await answers_of(broker.address, frames[n : n + 50])
            ]
            counters = {topic: broker.statistics.puts_of(topic) for topic in ("orders", "more", TIMER_TOPIC)}
            outcome = Outcome(
                answers,
                [without_addresses(record) for _, record in broker.store.records_from(0)],
                [tuple(each) for each in broker.store.entries(TIMER_TOPIC, 0, 0, 10_000)],
                broker.timers.index.pending,
                [(topic, c.times, c.count, c.size) for topic, c in counters.items() if c is not None],
            )
        outcome.entries, outcome.checkpoint = files_of_timers(Path(folder, "timers"))
        return outcome


def files_of_timers(folder):
    entries = {path.name: path.read_bytes() for path in sorted(folder.glob("*.entries"))}
    return entries, (folder / "checkpoint.json").read_bytes()


async def same_either_way(requests):
    """Return what comes of sends, which has to be the same for both forms."""
    usual = await play(requests, is_usual=True)
    assert usual == await play(requests, is_usual=False)
    return usual


def wish(name, value, key="K1"):
    return f"UNIQ_KEY\x01{key}\x02{name}\x01{value}"


async def test_every_way_to_ask_for_a_time_is_filed():
    texts = [
        wish("TIMER_DELIVER_MS", NOW + 5_000),
        wish("TIMER_DELAY_MS", 5_000),
        wish("TIMER_DELAY_SEC", 5),
        wish("TIMER_DELIVER_MS", NOW + LIMIT_MS, key="0A" * 16),
        "TIMER_DELAY_SEC\x015\x02WAIT\x01false\x02TAGS\x01red\x02UNIQ_KEY\x01K2\x02",
    ]
    outcome = await same_either_way([send_header(text, queue_id=n % 4) for n, text in enumerate(texts)])
    assert outcome.pending == {"orders": 1 + len(texts)}
    assert all(b'"recallHandle":"djEg' in answer for answer in outcome.answers)


async def test_more_messages_than_are_filed_at_once():
    due = [NOW + 1_000 + n * 977_000 % (30 * HOUR_MS) for n in range(300)]
    requests = [
        send_header(wish("TIMER_DELIVER_MS", each, key=f"K{n}"), topic=("orders", "more")[n % 3 == 0], queue_id=n % 4)
        for n, each in enumerate(due)
    ]
    outcome = await same_either_way(requests)
    assert outcome.pending == {"orders": 1 + 200, "more": 100}
    assert len(outcome.entries) == 31


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        (wish("TIMER_DELIVER_MS", NOW), False),
        (wish("TIMER_DELIVER_MS", NOW + 1), True),
        (wish("TIMER_DELAY_MS", 0), False),
        (wish("TIMER_DELIVER_MS", NOW + LIMIT_MS + 1), None),
        (wish("TIMER_DELAY_SEC", "05"), True),
        (wish("TIMER_DELAY_SEC", "-5"), False),
        (wish("TIMER_DELAY_SEC", "5 "), None),
        (wish("TIMER_DELAY_SEC", "٥"), None),
        (wish("TIMER_DELAY_SEC", "9" * 39), None),
        (wish("TIMER_DELAY_MS", 7) + "\x02TIMER_DELAY_MS\x019", True),
        (wish("TIMER_DELAY_MS", 7) + "\x02TIMER_DELAY_SEC\x019", True),
        (wish("TIMER_DELAY_MS", 7) + "\x02TIMER_OUT_MS\x019", False),
        (wish("TIMER_DELAY_MS", 7) + "\x02XTIMER_OUT_MS\x019", True),
        (wish("TIMER_DELAY_MS", "") + "\x02a\x01b", False),
        (wish("XTIMER_DELAY_MS", 7), False),
        (wish("a\x01TIMER_DELAY_MS", 7), False),
        (wish("TIMER_DELAY_MS", "7\x01"), None),
        ("TIMER_DELAY_MS\x017", True),
        (wish("TIMER_DELAY_MS", 7, key="ü~?"), True),
        (wish("TIMER_DELAY_MS", 7, key="a b"), True),
        (wish("TIMER_DELAY_MS", 7, key="a\x01b"), True),
        (wish("TIMER_DELAY_MS", 7) + "\x02UNIQ_KEY\x01K2", True),
        (wish("TIMER_DELAY_MS", 7) + "\x02XUNIQ_KEY\x01K2", True),
        (wish("TIMER_DELAY_MS", 7) + "\x02TRAN_MSG\x01false", True),
        (wish("TIMER_DELAY_MS", 7) + "\x02x\x01" + "y" * 32_600, True),
        (wish("TIMER_DELAY_MS", 7) + "\x02x\x01" + "y" * 32_700, None),
    ],
)
async def test_unusual_wish_means_the_same(text, waits):
    outcome = await same_either_way([send_header(text)] * 2)
    assert [b'"code":0' in answer for answer in outcome.answers] == [waits is not None] * 2
    assert outcome.pending == {"orders": 3 if waits else 1}


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"sys_flag": 8}, True),
        ({"sys_flag": 2, "flag": 9, "reconsume_times": 3}, True),
        ({"topic": dead_letter_topic("g")}, False),
        ({"topic": "more", "queue_id": 3}, True),  # nothing was ever stored there
        ({"queue_id": 4}, None),
    ],
)
async def test_unusual_header_means_the_same(fields, waits):
    text = wish("TIMER_DELAY_MS", 7)
    outcome = await same_either_way([send_header(text, **fields)] * 2)
    assert [b'"code":0' in answer for answer in outcome.answers] == [waits is not None] * 2
    assert sum(outcome.pending.values()) == (3 if waits else 1)


async def test_plain_send_into_a_topic_where_messages_only_wait():
    text = wish("TIMER_DELAY_MS", 7)
    requests = [send_header(each, topic="more") for each in (text, "a\x011", text, "a\x011", "a\x011", text)]
    outcome = await same_either_way(requests)
    assert [count for topic, _, count, _ in outcome.counted if topic == "more"] == [3]
    assert outcome.pending == {"orders": 1, "more": 3}


async def test_limit_that_was_changed_holds_from_then_on(orders):
    soon, late = send_header(wish("TIMER_DELAY_SEC", 60)), send_header(wish("TIMER_DELAY_SEC", 61))
    for _ in range(2):
        await orders.ask(late, b"body")
    await orders.ask(SaveBrokerSettings(), b"timerMaxDelaySec=60")
    await orders.ask(soon, b"body")
    await orders.ask(late, b"body", code=13)


NUMBERS = st.one_of(
    st.integers(NOW - 3, NOW + 3),
    st.integers(-3, LIMIT_MS // 1000 + 3),
    st.integers(NOW, NOW + LIMIT_MS + 3),
    st.integers(0, 10**24),
)
NAMES = ("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "UNIQ_KEY", "TIMER_OUT_MS", "TAGS", "WAIT", "CLUSTER")
VALUES = st.one_of(NUMBERS.map(str), st.text("0123456789aZ-\x01~ü", max_size=5), st.sampled_from(["true", "false"]))
PIECES = st.one_of(
    st.builds("{}\x01{}".format, st.sampled_from(NAMES), VALUES),
    st.builds("{}\x01{}".format, st.sampled_from(NAMES[:3]), st.integers(NOW, NOW + LIMIT_MS).map(str)),
    st.builds("UNIQ_KEY\x01{:032X}".format, st.integers(0, 1 << 120)),
    st.sampled_from(["", "x", "\x01", "xTIMER_DELAY_MS\x015", "TIMER_DEL_UNIQKEY\x01a+b", "REAL_TOPIC\x01other"]),
)
TEXTS = st.lists(PIECES, max_size=5).map("\x02".join)


@settings(max_examples=4, phases=(Phase.explicit, Phase.generate))  # many in one, too slow to be made smaller
@given(st.lists(st.builds(send_header, TEXTS, queue_id=st.integers(0, 3)), min_size=40, max_size=80))
@example([send_header("TIMER_DELAY_MS\x015\x02UNIQ_KEY\x01K", flag=n) for n in range(3)])
def test_whatever_properties_say_means_the_same(requests):
    asyncio.run(same_either_way(requests))


class Watched(FakeClock):
    """Says when somebody goes to sleep."""

    def __init__(self):
        super().__init__(NOW)
        self.slept = asyncio.Event()

    async def sleep(self, seconds):
        self.slept.set()
        await super().sleep(seconds)


def test_a_message_that_is_due_before_all_others_wakes_the_loop_that_serves(tmp_path):
    def timed(due_ms, *, is_usual=True):
        header = send_header(TIMED % due_ms, topic="orders", queue_id=0)
        return frame(header, is_usual=is_usual)

    def send_later(address):
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(PATIENCE_SECONDS)
            watched.wait(PATIENCE_SECONDS)
            time.sleep(0.2)  # the loop is asleep by then
            connection.sendall(timed(NOW + 60_000))
            connection.recv(1000)
            quiet.wait(PATIENCE_SECONDS)  # the end of the connection would wake the loop as well

    async def main():
        clock = Watched()
        create = CreateTopic(topic="orders", read_queues=4, write_queues=4, permission=6)
        async with Broker(BrokerConfig(tmp_path, port=0), clock) as broker:
            await answers_of(broker.address, [frame(create), timed(NOW + 20 * HOUR_MS, is_usual=False)])
            await answers_of(broker.address, [timed(NOW + 19 * HOUR_MS)])
            await clock.advance(0.5)  # those are filed, and the clock is looked at again in 0.6 s
            thread = threading.Thread(target=send_later, args=(broker.address,))
            thread.start()
            await asyncio.sleep(0.3)  # what opens the connection is done
            clock.slept.clear()
            watched.set()
            try:
                await asyncio.wait_for(clock.slept.wait(), PATIENCE_SECONDS)
            finally:
                quiet.set()
                thread.join()

    watched, quiet = threading.Event(), threading.Event()
    with asyncio.Runner(loop_factory=new_serving_loop) as runner:
        runner.run(main())
