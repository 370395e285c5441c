"""A load: what clients write to one broker, in a fixed order, with the time that passes between. Drawn from a seed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

import msgspec
from tests.speedups.drawn_requests import Requests
from tests.speedups.header_forms import CHANGES, change_bytes

from pyromq.errors import ProtocolError
from pyromq.remoting.command import Call, FrameSplitter, decode_request, frame_words
from pyromq.remoting.headers import DeleteTopic

FRAMES = Path(__file__).parent.parent / "golden" / "frames"
CONNECTIONS = 4


class Burst(msgspec.Struct, tag=True):
    """Whole frames, or bytes that are none, written in pieces that end at `cuts`. Ends when all answers are there."""

    connection: int
    data: bytes
    cuts: list[int] = []


class End(msgspec.Struct, tag=True):
    """Bytes that end anywhere, and then the connection: closed, reset, or by half until the broker closes it."""

    connection: int
    data: bytes
    how: str


class Advance(msgspec.Struct, tag=True):
    """Time passes."""

    seconds: float


Step = Burst | End | Advance


class Load(msgspec.Struct):
    """Steps, and the seed they come from. A dense one: many frames a step, half of them changed, no new topics.

    `is_flushed`: for a broker with SYNC_FLUSH, whose replies wait for the disk. `is_replicated`: for the master of a
    replica set, whose replies and readers wait for a follower that reports one step late.
    """

    seed: int
    steps: list[Step]
    is_dense: bool = False
    is_flushed: bool = False
    is_replicated: bool = False


def load_of(
    seed: int, count: int, *, is_dense: bool = False, is_flushed: bool = False, is_replicated: bool = False
) -> Load:
    """Return a load of so many steps, and those before that make topics, groups and members."""
    maker = _Maker(seed)
    maker.prepare()
    while len(maker.steps) < count:
        maker.add_dense() if is_dense else maker.add()
    return Load(seed, maker.steps, is_dense, is_flushed, is_replicated)


class _Maker:
    def __init__(self, seed: int) -> None:
        self.steps: list[Step] = []
        self.random = Random(seed)
        self.requests = Requests(self.random)
        self.golden = _golden()

    def prepare(self) -> None:
        requests = self.requests
        for topic, settings in {
            "fence": {},
            "a": {},
            "one": {"read_queues": 1, "write_queues": 1},
            "ordered": {"order": True},
            "multi": {"filter_type": "MULTI_TAG"},
            "readonly": {"permission": 4},
            "writeonly": {"permission": 2},
        }.items():
            self._alone(requests.created_topic(topic, **settings))
        for topic in sorted({topic for topic, _ in self.golden if topic}):
            self._alone(requests.created_topic(topic))
        self._alone(requests.saved_group("closed", consume_enabled=False))
        self._alone(requests.heartbeat("g", {"a": "*", "one": "a || b", "%RETRY%g": "*"}))
        self._alone(requests.heartbeat("h", {"a": "a > 1", "multi": "a"}, "c2"), connection=1)

    def add(self) -> None:
        """Add one step, or some that belong together."""
        roll = self.random.random()
        if roll < 0.6:
            self._burst()
        elif roll < 0.68:
            self._alone(self.requests.rare())
        elif roll < 0.7:
            topic = self.random.choice(["a", "one"])
            self._alone(self.requests.frame(DeleteTopic(topic=topic)))
            self._alone(self.requests.send(topic))
            self._alone(self.requests.created_topic(topic))
        elif roll < 0.76:
            self._alone(self.requests.frame_of_odd_topic())
        elif roll < 0.82:
            self.steps.append(Advance(self.random.choice([0.1, 1.0, 1.0, 6.0, 20.0, 61.0])))
        elif roll < 0.88:
            self._alone(self.random.choice(self.golden)[1])
        elif roll < 0.95:
            self._alone(self._changed())
        elif roll < 0.97:
            self._alone(self._garbage())
        else:
            data = self._frames()
            how = self.random.choice(["close", "reset", "half"])
            self.steps.append(End(self._connection(), data[: self.random.randint(0, len(data))], how))

    def add_dense(self) -> None:
        """Add a step of many hot requests, half of them changed, though not so that the connection would end."""
        data = _read_at_once(self._hot_or_changed() for _ in range(self.random.choice([20, 100])))
        self.steps.append(Burst(self._connection(), data))

    def _hot_or_changed(self) -> bytes:
        frame = self.requests.any_hot()
        changed = self._changed_in_place(frame) if self.random.random() < 0.5 else frame
        return changed if _is_request(changed) else frame

    def _changed_in_place(self, raw: bytes) -> bytes:
        ((serialization, header, body),) = FrameSplitter().split(raw)
        changed = bytearray(header)
        change_bytes(self.random, changed, CHANGES)
        return frame_words(serialization, len(changed), len(body)) + changed + body

    def _burst(self) -> None:
        data = self._frames()
        cuts: list[int] = []
        roll = self.random.random()
        if roll < 0.05 and len(data) < 1500:
            cuts = list(range(1, len(data)))
        elif roll < 0.4:
            cuts = sorted(self.random.randint(0, len(data)) for _ in range(self.random.choice([1, 1, 2, 5])))
        self.steps.append(Burst(self._connection(), data, cuts))

    def _frames(self) -> bytes:
        """Frames whose answers come in order: nothing that waits for a table to be written."""
        requests, random = self.requests, self.random
        count = random.choice([1, 1, 2, 3, 8, 40])
        kinds = random.choice(
            [
                [requests.send],
                [requests.send],
                [requests.send, requests.send, requests.batch],
                [requests.pull],
                [requests.pull, requests.update_offset],
                [requests.send, requests.pull, requests.update_offset, requests.batch, requests.asked],
            ]
        )
        return _read_at_once(random.choice(kinds)() for _ in range(count))

    def _alone(self, data: bytes, connection: int | None = None) -> None:
        self.steps.append(Burst(self._connection() if connection is None else connection, data))

    def _changed(self) -> bytes:
        """A frame with some bytes changed; mostly still one frame, since its lengths are made to fit."""
        random = self.random
        raw = random.choice(self.golden)[1] if random.random() < 0.5 else self.requests.any_hot()
        ((serialization, header, body),) = FrameSplitter().split(raw)
        changed = bytearray(header)
        for _ in range(random.choice([1, 1, 2, 4])):
            change_bytes(random, changed, CHANGES)
        if random.random() < 0.3:
            body = body[: random.randint(0, len(body))]
        return frame_words(serialization, len(changed), len(body)) + changed + body

    def _garbage(self) -> bytes:
        """Bytes that are no frames, at once or behind some; the connection is closed for them."""
        random = self.random
        before = self._frames() if random.random() < 0.5 else b""
        words = random.choice(
            [
                b"GET / HTTP/1.1\r\n\r\n",
                b"\0\0\0\x03\0\0\0\0",
                b"\0\0\0\x0a\0\0\0\x07      ",
                b"\x7f\xff\xff\xff\0\0\0\0",
                b"\xff\xff\xff\xff\0\0\0\0",
                frame_words(0, 2, 0) + b"{]",
                frame_words(9, 2, 0) + b"{}",
                frame_words(1, 2, 0) + b"\0\x0a",
                b"\xff" + random.randbytes(63),
                b"\x7f\xff\xff\xff",
                b"\x01\0\0\0\0\0\0",
            ]
        )
        return before + words

    def _connection(self) -> int:
        return self.random.randrange(CONNECTIONS)


def _read_at_once(frames: Iterable[bytes]) -> bytes:
    """Join frames as far as one read takes them: between two reads, waiting pulls are answered."""
    data = b""
    for frame in frames:
        if data and len(data) + len(frame) > 60_000:
            break
        data += frame
    return data


def _is_request(raw: bytes) -> bool:
    """Whether a frame is a request that a broker answers at once and that is about messages."""
    ((serialization, header, body),) = FrameSplitter().split(raw)
    try:
        call = decode_request(serialization, header, body)
    except ProtocolError:
        return False
    return isinstance(call, Call) and call.code in (10, 11, 15, 310, 320, 361)


# Requests that the broker answers by itself, and that change nothing for all others.
_PLAYED = {10, 11, 14, 15, 29, 30, 31, 32, 33, 34, 36, 37, 38, 41, 42, 46, 202, 208, 310, 320, 324, 325, 361}


def _golden() -> list[tuple[str, bytes]]:
    """Return requests that genuine clients sent: topic, or "", and frame."""
    found = []
    for path in sorted(FRAMES.iterdir()):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                if line["role"] == "request" and line["code"] in _PLAYED:
                    fields = line["header"].get("extFields") or {}
                    topic = fields.get("topic") or fields.get("b") or ""
                    found.append(("" if "%" in topic else topic, bytes.fromhex(line["hex"])))
    return found
