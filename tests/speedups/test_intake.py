"""Compiled code enters the records of a master's log as the plain form does, whatever the master sends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.seed import seed_of_the_day
from tests.store.making import ADDRESS, NOON_MS, StoppedClock, opened
from tests.waiting import PATIENCE_SECONDS

from pyromq import speedups
from pyromq.errors import MQError
from pyromq.message import StoredMessage, SysFlag, pack_address
from pyromq.names import SCHEDULE_TOPIC
from pyromq.store.message_store import MessageStore

pytest.importorskip("pyromq.speedups.intake")

TEXTS = (
    "",
    "TAGS\x01TagA",
    "TAGS\x01TagA\x02",
    "a\x01b\x02TAGS\x01TagA\x02c\x01d",
    "XTAGS\x01no",
    "XTAGS\x01no\x02TAGS\x01TagA",
    "TAGS\x01TagA\x02XTAGS\x01no",
    "TAGS\x01old\x02TAGS\x01TagA",
    "TAGS\x01",
    "TAGS\x01a\x01b",
    "TAGS\x01grün\x02KEYS\x01k",
    "DELAY\x013\x02TAGS\x01TagA",
    "TAGS",
    "\x01\x02\x01",
)
TOPICS = ("orders", "orders", "orders", "größe", "inner", SCHEDULE_TOPIC, "o")
FLAGS = (0, 0, 0, 0, SysFlag.HALF, SysFlag.COMMIT, SysFlag.ROLLBACK, SysFlag.COMPRESSED)


def drawn(chance: random.Random) -> StoredMessage:
    return StoredMessage(
        chance.choice(TOPICS),
        chance.randbytes(chance.choice((0, 1, 40, 300))),
        chance.choice(TEXTS),
        chance.randrange(3),
        chance.randrange(9),
        chance.choice(FLAGS),
        NOON_MS,
        pack_address("::1", 80) if chance.random() < 0.1 else ADDRESS,
    )


class Watched:
    """A follower, and what its listeners and the follower of an internal topic were told."""

    def __init__(self, store: MessageStore, *, plain: bool) -> None:
        self.store = store
        self.arrived: dict[int, int] = {}
        self.followed: list[tuple[int, str]] = []
        self.complaints: list[str] = []
        store.listen(self._arrived, lambda topic, queue_id, arrivals: self.arrived.update(arrivals()))
        store.follow("inner", lambda record: self.followed.append((record.log_offset, record.property_text)))
        if plain:
            store._intake._ordinary = None

    def _arrived(self, message: StoredMessage, tags_code: int) -> None:
        self.arrived[message.log_offset] = tags_code

    def take(self, offset: int, data: bytes) -> None:
        try:
            self.store.append_bytes(offset, data)
        except MQError as error:
            self.complaints.append(str(error).replace(str(self.store.config.root), ""))

    def state(self) -> dict[str, object]:
        store = self.store
        queues = {
            (topic, queue_id): (store.min_offset(topic, queue_id), store.entries(topic, queue_id, 0, 9999))
            for topic in sorted(store.topics())
            for queue_id in store.queue_ids(topic)
        }
        ends = store.max_log_offset, store.written_end, store._log.last_store_ms
        return {"queues": queues, "ends": ends, "complaints": self.complaints, "told": (self.arrived, self.followed)}


@pytest.mark.parametrize("seed", [*range(8), seed_of_the_day()])
def test_both_forms_enter_the_same(tmp_path: Path, seed: int) -> None:
    chance, clock = random.Random(seed), StoppedClock()
    damage = chance.random() < 0.5
    with (
        opened(tmp_path / "m", clock) as master,
        opened(tmp_path / "c") as compiled_store,
        opened(tmp_path / "p") as plain_store,
    ):
        compiled, plain = Watched(compiled_store, plain=False), Watched(plain_store, plain=True)
        for _ in range(30):
            for _ in range(chance.choice((1, 3, 20))):
                clock.ms += chance.choice((0, 1, 999))
                master.append(drawn(chance))
            if chance.random() < 0.05:
                master.delete_topic("orders").result(PATIENCE_SECONDS)
            while data := bytes(master.views(plain_store.written_end, chance.choice((7, 100, 1000, 99_999)))):
                if damage and chance.random() < 0.1:
                    spoiled = bytearray(data)
                    spoiled[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                    data = bytes(spoiled)
                offset = plain_store.written_end
                for each in (plain, compiled):
                    each.take(offset, data)
                assert compiled.state() == plain.state()
        assert plain_store.max_log_offset > 4096 * 3
    logs = [
        [path.read_bytes() for path in sorted((tmp_path / name / "commitlog").iterdir())] for name in ("m", "c", "p")
    ]
    assert logs[1] == logs[2]
    assert damage or logs[0] == logs[1]


@pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not active")
def test_compiled_code_enters_ordinary_records(tmp_path: Path) -> None:
    with opened(tmp_path / "m") as master, opened(tmp_path / "c") as follower:
        for number in range(8):
            master.append(StoredMessage("orders", b"x", "TAGS\x01TagA", number % 2, born_address=ADDRESS))
        follower.append_bytes(0, master.views(0, 4 * master.max_log_offset // 8))  # plain: it makes the queues
        taken: list[object] = []
        follower.listen(lambda message, code: taken.append(message), lambda *_: None)
        follower.append_bytes(follower.written_end, master.views(follower.written_end, 9999))
        assert taken == []
        assert follower.entries("orders", 1, 0, 9) == master.entries("orders", 1, 0, 9)
