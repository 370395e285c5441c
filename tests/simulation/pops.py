"""What a seed does to a group that pops: random pops, acknowledgements and changes, crashes, and disks that fail.

A crash of the process repeats no acknowledged message, and leaves receipt handles valid. A power loss may repeat
messages. Neither loses one that was flushed and not acknowledged.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pyromq.broker.config import BrokerConfig
from pyromq.broker.modules import consumer_offsets, popping
from pyromq.broker.popping import pop_journal
from pyromq.broker.shared_state import SharedState
from pyromq.errors import StoreNotWritable
from pyromq.message import StoredMessage
from pyromq.names import dead_letter_topic
from pyromq.record import decode_all
from pyromq.remoting.bodies import BatchAck, BatchAcks, GroupConfig, TopicConfig, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.headers import BatchAckMessage, PopMessage, PopMessageResponse
from pyromq.remoting.receipt_handle import PopInfos, ReceiptHandle, bits_of, encode_bits
from pyromq.slow_work import run_blocking
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Killed

from .life import forget_caches
from .model import require
from .parts import ADDRESS, ROOT, SMALL, Time, small_stretches

GROUP, TOPIC, QUEUES = "g", "orders", 2
LIVES = 4
OPERATIONS = 40
SEGMENT_BYTES = 600  # of the journal, so that it rolls often


@dataclass
class Held:
    """A message that a consumer has received, the handle, and when it is due."""

    handle: ReceiptHandle
    due_ms: int


class PopLife:
    """Everything of one seed. `run` raises `Wrong`, or whatever else goes wrong."""

    def __init__(self, seed: int) -> None:
        forget_caches()
        self.random = Random(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.time = Time()
        self.is_orderly = self.random.random() < 0.2
        self.max_retries = self.random.choice([2, 1000])
        self.story: list[str] = []
        self.sent = 0
        self.ends: dict[bytes, int] = {}  # sent messages, and the log offset behind each
        self.safe: set[bytes] = set()  # flushed: no crash may take them
        self.acked: set[bytes] = set()
        self.unsure: set[bytes] = set()  # acknowledged, perhaps without a reply
        self.may_repeat: set[bytes] = set()  # though acknowledged
        self.held: dict[bytes, Held] = {}
        self.adrift: set[bytes] = set()  # perhaps in flight, with a handle that the consumer does not have
        self.copied: set[bytes] = set()  # due messages whose copies may not be safe: a crash copies them once more
        self.is_full = False

    @small_stretches
    def run(self) -> None:
        before, pop_journal.SEGMENT_BYTES = pop_journal.SEGMENT_BYTES, SEGMENT_BYTES
        try:
            asyncio.run(self.lives())
        finally:
            pop_journal.SEGMENT_BYTES = before

    async def lives(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # a kill inside a callback
        for _ in range(LIVES):
            self.begin()
            try:
                await self.live()
            except Killed:
                self.note("killed")
            self.end()
        self.begin()
        await self.finish()

    def note(self, text: str) -> None:
        self.story.append(f"{self.disk.operations}: {text}")

    # -- begin and end of a process

    def begin(self) -> None:
        """Open what is there, perhaps after a kill while opening."""
        if self.random.random() < 0.3:
            self.disk.kill_at = self.disk.operations + self.random.randint(1, 80)
            try:
                self.open()
            except Killed:
                self.note("killed while opening")
            self.next_disk(power_loss=self.random.random() < 0.5)
        self.disk.kill_at = None
        self.open()

    def open(self) -> None:
        store = StoreConfig(ROOT, segment_bytes=1 << 16, flush=FlushMode.SYNC, **SMALL)
        self.state = state = SharedState(BrokerConfig(ROOT, store=store), self.time, self.disk)
        state.store.open()
        state.topics.load()
        state.groups.load()
        offsets = consumer_offsets(state)
        assert offsets.load is not None
        offsets.load()
        if state.topics.find(TOPIC) is None:
            state.topics.put(TopicConfig(TOPIC, read_queues=QUEUES, write_queues=QUEUES))
            state.topics.persist()
        state.groups.put(GroupConfig(GROUP, retry_max_times=self.max_retries))
        module = popping(state)
        assert module.load is not None
        module.load()
        self.module = module
        self.popper, self.acker = module.answerers[0], module.answerers[1]
        self.note(f"opened: log to {state.store.max_log_offset}")

    def end(self) -> None:
        self.disk.refuse = lambda kind, path: None
        self.is_full = False
        self.note_flushed()
        self.may_repeat |= self.copied
        if not self.disk.is_killed and self.random.random() < 0.3:
            self.note("closing")
            try:
                self.close()
            except Killed:
                self.note("killed while closing")
        self.next_disk(power_loss=self.random.random() < 0.4)

    def close(self) -> None:
        self.state.store.close()
        self.state.offsets.persist()
        assert self.module.close is not None
        self.module.close()

    def next_disk(self, *, power_loss: bool) -> None:
        self.note("power cut" if power_loss else "process gone")
        if power_loss:
            self.may_repeat |= self.ends.keys()
            self.held = {}
            self.ends = {body: end for body, end in self.ends.items() if body in self.safe}
            self.disk = self.disk.after_power_cut(self.random)
        else:
            self.disk = self.disk.after_kill()
        self.time.pass_by(self.random.choice([0, 0.5, 5, 100]))

    def note_flushed(self) -> None:
        self.safe |= {body for body, end in self.ends.items() if end <= self.state.store.flushed_to}

    # -- work

    async def live(self) -> None:
        works, weights = list(WORKS), list(WORKS.values())
        turns = self.random.randint(1, OPERATIONS)
        fate = self.random.random()
        if fate < 0.6:
            self.disk.kill_at = self.disk.operations + self.random.randint(1, 120)
        full = range(turns // 3, turns // 2) if fate > 0.85 else range(0)
        for turn in range(turns):
            if full:
                self.is_full = turn in full
                self.disk.refuse = self.no_room if self.is_full else lambda kind, path: None
            work = self.random.choices(works, weights)[0]
            self.note(work.__name__)
            try:
                work(self)
            except StoreNotWritable:
                require(self.is_full, "refused without a reason")
            for _ in range(3):
                await asyncio.sleep(0)
            if self.disk.is_killed:
                raise Killed
            if work is PopLife.flush and not self.is_full and not self.state.pops._journal.is_behind:
                self.copied = set()
            self.note_flushed()
            self.check_offsets()
            self.time.pass_by(self.random.choice([0, 0.001, 0.1, 1, 4]))
            if self.random.random() < 0.1:
                self.disk.write_back(self.random)

    @staticmethod
    def no_room(kind: str, path: Path) -> int | None:
        return errno.ENOSPC if path.parent.name == "pops" and kind in ("create", "write") else None

    def check_offsets(self) -> None:
        """Only the least offset in flight is the group's offset."""
        for body, held in self.held.items():
            if held.handle.retry == "0" and held.due_ms > self.time.ms and body not in self.unsure:
                committed = self.state.offsets.find(GROUP, TOPIC, held.handle.queue_id)
                assert committed is not None
                require(committed <= held.handle.offset, f"{body!r} is in flight behind the group's offset")

    def send(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.sent += 1
            body = b"%d" % self.sent
            message = StoredMessage(TOPIC, body, "", 0, born_ms=self.time.ms, born_address=ADDRESS)
            message.queue_id = self.random.randrange(QUEUES)
            self.state.store.append(message)
            self.ends[body] = self.state.store.max_log_offset

    def pop(self) -> None:
        self.receive(self.random.choice([1, 4, 32]), self.random.choice([0, 500, 3_000, 60_000]))

    def receive(self, count: int, invisible_ms: int) -> list[bytes]:
        header = PopMessage(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=-1,
            max_count=count,
            invisible_ms=invisible_ms,
            poll_ms=0,
            born_ms=self.time.ms,
            init_mode=0,
            order=self.is_orderly or None,
        )
        try:
            reply = self.popper.pop(header, Call(code=200050))
            if not isinstance(reply, Reply):
                reply = run_blocking(reply)
        except Killed:
            self.adrift |= self.ends.keys() - self.held.keys()
            raise
        if reply.code:
            return []
        response = reply.header
        assert isinstance(response, PopMessageResponse)
        infos = PopInfos(response, "broker-a")
        found = []
        for message in decode_all(b"".join(reply.body)):
            body = message.stored_body
            require(body not in self.acked or body in self.may_repeat, f"{body!r} was acknowledged and comes again")
            held = self.held.get(body)
            require(
                held is None or held.due_ms <= self.time.ms or body in self.may_repeat, f"{body!r} is not visible yet"
            )
            handle = infos.handle(message)
            self.held[body] = Held(handle, handle.expires_ms)
            self.adrift.discard(body)
            found.append(body)
        self.note(f"received {b' '.join(found).decode()}")
        return found

    def ack(self) -> None:
        alive = [body for body, held in self.held.items() if held.due_ms > self.time.ms]
        if alive:
            self.acknowledge(self.random.sample(alive, self.random.randint(1, len(alive))))

    def acknowledge(self, bodies: list[bytes]) -> None:
        unsure = set(bodies) - self.may_repeat  # until the reply: the broker may be killed before
        self.may_repeat |= unsure
        self.unsure |= set(bodies)
        acks = []
        for body in bodies:
            handle = self.held[body].handle
            values = (handle.start, handle.queue_id, handle.revive_queue, handle.pop_ms, handle.invisible_ms)
            bits = encode_bits(bits_of([handle.offset], handle.start))
            acks.append(BatchAck(GROUP, TOPIC, handle.retry, *values, bits))
        call = Call(code=200151, body=encode_body(BatchAcks("broker-a", acks)))
        reply = self.acker.acknowledge_batch(BatchAckMessage(), call)
        if not isinstance(reply, Reply):
            run_blocking(reply)
        for body in bodies:
            self.held.pop(body, None)
        self.acked |= set(bodies)
        if not self.is_full and not self.is_orderly:  # an orderly queue repeats all behind an unacknowledged message
            self.may_repeat -= unsure
        self.note(f"acknowledged {b' '.join(bodies).decode()}")

    def change(self) -> None:
        alive = [body for body, held in self.held.items() if held.due_ms > self.time.ms and body not in self.unsure]
        if alive:
            body = self.random.choice(alive)
            handle, invisible_ms = self.held[body].handle, self.random.choice([0, 1_000, 60_000])
            topic = handle.topic(GROUP, TOPIC)
            pop = self.state.pops.change(GROUP, topic, handle, invisible_ms)
            changed = handle._replace(start=handle.offset, pop_ms=pop.pop_ms, invisible_ms=invisible_ms)
            self.held[body] = Held(changed, pop.due_ms)
            if self.is_full:
                del self.held[body]  # after a kill, the earlier handle is valid again
                self.adrift.add(body)

    def redeliver(self) -> None:
        due = self.adrift | {body for body, held in self.held.items() if held.due_ms <= self.time.ms}
        self.may_repeat |= self.copied & (due | self.acked)  # a copy that is not safe after 30 s is made again
        self.copied |= due
        if self.is_full:
            self.may_repeat |= self.copied
        for step in self.module.steps:
            while step.act() == 0.0:
                pass

    def flush(self) -> None:
        self.state.store.flush_due()

    def save(self) -> None:
        self.state.offsets.persist()

    def delete_topic(self) -> None:
        """Delete the topic and make it again. No message sent afterwards may count as one that was received before."""
        if self.is_full:
            return
        self.may_repeat |= self.ends.keys()  # if a crash prevents the deletion, or from the retry topic
        self.unsure |= self.ends.keys()
        self.held, self.adrift = {}, set()
        self.state.offsets.remove_topic(TOPIC)
        self.state.offsets.persist()
        deleted = self.state.store.delete_topic(TOPIC)
        self.state.store.flush_due()
        require(deleted.done(), "the topic is not deleted")

    # -- the end of all

    async def finish(self) -> None:
        """Let everything become due, and receive it."""
        self.time.pass_by(50_000)
        for _ in range(200):
            self.redeliver()
            self.state.store.flush_due()
            for _ in range(3):
                await asyncio.sleep(0)
            if found := self.receive(32, 60_000):
                self.acknowledge(found)
            elif not self.state.pops.in_flight.count:
                break
            else:
                self.time.pass_by(100)
        store, letters = self.state.store, dead_letter_topic(GROUP)
        dead = [store.message(letters, 0, offset) for offset in range(store.max_offset(letters, 0))]
        done = self.unsure | {message.stored_body for message in dead if message is not None}
        require(self.safe <= done, f"{sorted(self.safe - done)} are lost")
        self.close()


WORKS: dict[Callable[[PopLife], None], int] = {
    PopLife.send: 8,
    PopLife.pop: 10,
    PopLife.ack: 8,
    PopLife.change: 3,
    PopLife.redeliver: 6,
    PopLife.flush: 5,
    PopLife.save: 3,
    PopLife.delete_topic: 1,
}
