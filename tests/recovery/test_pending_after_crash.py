"""A crash at any write: transactions are decided once and as their producers wanted, delayed messages are not lost."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.broker.consuming.cold import LoadedAtOnce
from tests.seed import seed_of_the_day

from pyromq.broker.config import BrokerConfig
from pyromq.broker.confirmation import Confirmation
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.broker.topics import Topics
from pyromq.broker.transactions.end_transaction_processor import EndTransactionProcessor
from pyromq.broker.transactions.half_messages import HalfMessages
from pyromq.errors import BrokerError
from pyromq.message import StoredMessage, SysFlag
from pyromq.names import HALF_TOPIC, SCHEDULE_TOPIC
from pyromq.permissions.permissions import Permissions
from pyromq.remoting.command import Call
from pyromq.remoting.headers import EndTransaction
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig
from pyromq.testing import FakeClock

SEGMENT_BYTES = 1 << 20
OPERATIONS = 60
START_MS = 1_700_000_000_000


@dataclass
class Parts:
    """What of a broker keeps messages back."""

    store: MessageStore
    offsets: ConsumerOffsets
    levels: DelayLevels
    halves: HalfMessages
    transacting: EndTransactionProcessor


@dataclass
class History:
    """What happened before the crash, in the order of the log."""

    wanted: dict[bytes, int] = field(default_factory=dict)  # body of a half message -> decision
    copies: dict[bytes, list[StoredMessage]] = field(default_factory=dict)  # its records in the half topic
    due: dict[bytes, int] = field(default_factory=dict)  # body of a delayed message -> ms
    boundaries: list[int] = field(default_factory=list)  # log offsets where a record ends
    notes: list[tuple[int, dict[str, bytes]]] = field(default_factory=list)  # log end -> files of progress


@contextmanager
def opened(root: Path, clock: FakeClock) -> Iterator[Parts]:
    small = {"segment_bytes": SEGMENT_BYTES, "consume_queue_entries": 1_000, "index_enabled": False}
    store = MessageStore(StoreConfig(root, delay_levels_ms=(1_000, 3_000), **small), clock, store_address=bytes(8))
    config = BrokerConfig(root)
    statistics = Statistics("c", clock)
    store.open()
    try:
        offsets = ConsumerOffsets(JsonFile(root / "config/consumerOffset.json"))
        offsets.load()
        topics = Topics(config, JsonFile(root / "config/topics.json"), clock)
        put_message = PutMessage(store, statistics)
        file = JsonFile(root / "config/delayOffset.json")
        cold_reads = LoadedAtOnce(store.disk, clock)
        levels = DelayLevels(store, put_message, file, statistics=statistics, cold_reads=cold_reads, clock=clock)
        levels.load()
        halves = HalfMessages(store, put_message, topics=topics, offsets=offsets, clock=clock)
        halves.load()
        halves.repair()
        transacting = EndTransactionProcessor(
            put_message,
            halves,
            delay_levels=levels,
            confirmation=Confirmation(store, clock),
            store=store,
            permissions=Permissions(),
        )
        yield Parts(store, offsets, levels, halves, transacting)
    finally:
        store.close()


def send_half(parts: Parts, clock: FakeClock, body: bytes) -> StoredMessage:
    message = StoredMessage("orders", body, born_ms=clock.now_ms())
    parts.halves.prepare(message, {"PGROUP": "p", "UNIQ_KEY": body.hex(), "TRAN_MSG": "true"})
    parts.store.append(message)
    return message


def decide(parts: Parts, record: StoredMessage, decision: int) -> None:
    """Send a decision; whether it is refused because there was one is not asked here."""
    header = EndTransaction(
        producer_group="p",
        half_queue_offset=record.queue_offset,
        log_offset=record.log_offset,
        decision=decision,
        message_id="x",
    )
    try:
        parts.transacting.end(header, Call(code=37))
    except BrokerError as error:
        assert "is decided already" in str(error)


def deliver_due(parts: Parts) -> None:
    while parts.levels.deliver() == 0:
        pass


def messages(parts: Parts, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    store = parts.store
    entries = store.entries(topic, queue_id, 0, store.max_offset(topic, queue_id))
    return [message for entry in entries if (message := store.message_at(entry.log_offset)) is not None]


async def live(parts: Parts, clock: FakeClock, chance: random.Random) -> History:
    """Do random things as clients would, and note progress now and then."""
    history = History()
    parts.store.listen(
        lambda message, code: history.boundaries.append(message.log_offset + message.size), lambda *_: None
    )
    for number in range(OPERATIONS):
        await operate(parts, clock, chance, history=history, body=b"%d" % number)
        await clock.advance(chance.choice([0, 0.5, 2]))
        deliver_due(parts)
        if chance.random() < 0.2:
            note_progress(parts, history)
    return history


async def operate(parts: Parts, clock: FakeClock, chance: random.Random, *, history: History, body: bytes) -> None:
    open_ones = [body for body in history.copies if parts.halves.find(history.copies[body][0])]
    action = chance.choice(["half", "half", "delay", "decide", "decide", "check"])
    if action == "half":
        history.copies[body] = [send_half(parts, clock, body)]
        history.wanted[body] = chance.choice([SysFlag.COMMIT, SysFlag.ROLLBACK])
    elif action == "delay":
        message = StoredMessage("delayed", body)
        parts.levels.divert(message, {"DELAY": str(chance.choice([1, 2]))})
        parts.store.append(message)
        history.due[body] = message.store_ms + (1_000, 3_000)[message.queue_id]
    elif open_ones:
        chosen = chance.choice(open_ones)
        copies = history.copies[chosen]
        if action == "decide":
            decide(parts, chance.choice(copies), history.wanted[chosen])
        else:
            copies.append(parts.halves.renew(parts.halves.find(copies[0]), copies[-1]))


def note_progress(parts: Parts, history: History) -> None:
    """Write progress as if all were on disk, and remember the files of this moment."""
    parts.halves.note_progress(closed=True)
    parts.offsets.persist()
    parts.levels.persist()
    config = parts.store.config.root / "config"
    files = {path.name: path.read_bytes() for path in config.glob("*Offset.json")}
    history.notes.append((parts.store.max_log_offset, files))


def crash(target: Path, log: bytes, cut: int, history: History) -> None:
    """Make the folder that a crash leaves which let `cut` bytes of the log through, and the progress noted by then."""
    (target / "commitlog").mkdir(parents=True)
    with (target / "commitlog" / f"{0:020d}").open("wb") as file:
        file.write(log[:cut])
        file.truncate(SEGMENT_BYTES)
    (target / "abort").touch()
    (target / "config").mkdir()
    for log_end, files in history.notes:
        if log_end <= cut:
            for name, content in files.items():
                (target / "config" / name).write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [seed_of_the_day()])
async def test_after_a_crash_at_any_write_all_is_as_its_senders_wanted(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    clock = FakeClock(START_MS)
    with opened(tmp_path / "live", clock) as parts:
        history = await live(parts, clock, chance)
        log = (tmp_path / "live/commitlog" / f"{0:020d}").read_bytes()
    cuts = history.boundaries + [boundary - 7 for boundary in history.boundaries]
    for cut in cuts:
        target = tmp_path / str(cut)
        crash(target, log, cut, history)
        later = FakeClock(clock.now_ms() + 5_000)  # everything is due
        with opened(target, later) as parts:
            where = f"seed {seed}, cut at {cut}"
            check_transactions(parts, history, where)
            check_delays(parts, history, where)


def check_transactions(parts: Parts, history: History, where: str) -> None:
    """Let every producer decide once more, on each copy that is left, and look at what can be seen."""
    stored = {message.log_offset for message in messages(parts, HALF_TOPIC)}
    left = {body: [copy for copy in copies if copy.log_offset in stored] for body, copies in history.copies.items()}
    for body, copies in left.items():
        for copy in copies:
            decide(parts, copy, history.wanted[body])
    seen = Counter(message.body for message in messages(parts, "orders"))
    assert seen == {body: 1 for body in left if left[body] and history.wanted[body] == SysFlag.COMMIT}, where
    assert not parts.halves.undecided(), where


def check_delays(parts: Parts, history: History, where: str) -> None:
    """Nothing that was parked is missing, nothing came early."""
    parked = {message.body for level in (0, 1) for message in messages(parts, SCHEDULE_TOPIC, level)}
    deliver_due(parts)
    delivered = messages(parts, "delayed")
    assert {message.body for message in delivered} == parked, where
    assert all(message.store_ms >= history.due[message.body] for message in delivered), where
