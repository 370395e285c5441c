"""What a seed does to a store: random work, crashes at random moments, and a look after each of them."""

from __future__ import annotations

import errno
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from tests.slow_work import steps_of

from pyromq.broker.delays.timer_records import delivered_from
from pyromq.errors import BrokerError, MessageRefused, MQError, StoreError, StoreNotWritable
from pyromq.message import StoredMessage, SysFlag, decode_properties, encode_properties
from pyromq.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pyromq.record import encode
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import Call
from pyromq.remoting.headers import EndTransaction
from pyromq.remoting.recall_handle import RecallHandle
from pyromq.testing import SimulatedDisk
from pyromq.testing.simulated_disk import Killed

from .model import Model, require
from .parts import ADDRESS, LEVELS_MS, Parts, Time, small_stretches

TOPICS = ("orders", "bills", "a-topic-of-some-length-" + "x" * 60)
LIVES = 4
OPERATIONS = 40
TRACED = ("pyromq/store/", "pyromq/broker/")


def forget_caches() -> None:
    """A line that runs only where a cache has no answer must not depend on what ran before."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pyromq."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


class Life:
    """Everything of one seed. `run` raises `Wrong`, or whatever else goes wrong."""

    def __init__(self, seed: int) -> None:
        forget_caches()
        self.random = Random(seed)
        self.disk = SimulatedDisk(seed=seed)
        self.time = Time()
        self.model = Model()
        self.segment_bytes = self.random.choice([4096, 8192, 16384])
        self.parts = Parts(self.disk, self.time, self.segment_bytes)
        self.count = 0
        self.decisions: dict[bytes, int] = {}
        self.cancelled: set[str] = set()  # unique keys of timers
        self.story: list[str] = []  # what happened, for who has to understand it
        self.power_loss = False
        self.is_clock_set = False
        self.is_full = False
        self.is_refused = False  # the disk has failed at a flush: nothing more is taken

    @small_stretches
    def run(self) -> None:
        for _ in range(LIVES):
            self.begin()
            try:
                self.live()
            except Killed:
                self.note("killed")
            self.end()
        self.begin()
        self.finish()

    def note(self, text: str) -> None:
        self.story.append(f"{self.disk.operations}: {text}")

    # -- begin and end of a process

    def begin(self) -> None:
        """Open what is there, perhaps dying of it a few times, and compare."""
        for _ in range(self.random.choice([0, 0, 0, 1, 2])):
            self.disk.kill_at = self.random.randint(1, 60)
            try:
                self.parts.open()
            except Killed:
                self.note("killed while opening")
                self.next_disk(self.random.random() < 0.5)
                continue
            break
        else:
            self.parts.open()
        self.disk.kill_at = None
        store = self.parts.store
        self.model.check(store, self.random, power_loss=self.power_loss)
        for table in self.parts.tables:
            self.model.check_table(table, power_loss=self.power_loss)
            self.model.watch_table(table)
        self.note(f"opened: log from {store.min_log_offset} to {store.max_log_offset}")
        self.power_loss = False
        self.is_refused = False
        self.model.watch(store)
        self.parts.load()

    def end(self) -> None:
        """Leave in order or not, and find the disk as it is then."""
        disk = self.disk
        disk.refuse = lambda kind, path: None
        disk.while_syncing = lambda path: None
        self.is_full = False
        self.note_confirmed()
        unplaced = disk.written_without_room()
        require(unplaced is None, f"{unplaced} was written where a full disk would have had no room")
        if not disk.is_killed and self.random.random() < 0.3:
            self.close()
        self.next_disk(self.random.random() < 0.6)

    def close(self) -> None:
        self.note("closing")
        try:
            self.parts.close()
            require(
                self.parts.store._flusher._failure is None,
                "closing a store whose disk failed looks as if all were well",
            )
            self.model.confirmed_to = self.parts.store.max_log_offset
        except StoreNotWritable:
            require(self.is_refused, "closing fails")
        except Killed:
            self.note("killed while closing")

    def note_confirmed(self) -> None:
        store = self.parts.store
        self.model.confirmed_to = max(self.model.confirmed_to, store.flushed_to)
        self.model.dropped_to = max(self.model.dropped_to, store.min_log_offset)

    def next_disk(self, power_loss: bool) -> None:
        self.note_confirmed()
        self.note("power cut" if power_loss else "process gone")
        self.power_loss |= power_loss
        self.disk = self.disk.after_power_cut(self.random) if power_loss else self.disk.after_kill()
        self.time.pass_by(self.random.choice([0, 0.5, 5, 100]))
        if self.random.random() < 0.1:
            self.time.ms -= 3_600_000  # somebody set the clock
            self.is_clock_set = True
        self.parts = Parts(self.disk, self.time, self.segment_bytes)

    # -- work

    def live(self) -> None:
        works = list(WORKS)
        weights = list(WORKS.values())
        last = self.random.randint(1, OPERATIONS)
        died = self.random.random()
        if died < 0.5:
            self.disk.kill_at = self.disk.operations + self.random.randint(1, 150)
        elif died < 0.6:
            self.disk.refuse = self.failing_flush(self.random.randint(1, 20))
        full = range(0) if not 0.6 < died < 0.75 else range(self.random.randint(0, last), last - 2)
        for turn in range(last):
            self.is_full = turn in full
            if full:
                self.disk.refuse = self.full if self.is_full else lambda kind, path: None
            if full and turn == full.stop:
                self.attempt(Life.run_timers)  # they find out that there is room again
            work = self.random.choices(works, weights)[0]
            self.note(work.__name__)
            if died > 0.75 and turn == last - 1:
                self.die_inside(work)
            else:
                self.attempt(work)
            self.note_confirmed()
            self.time.pass_by(self.random.choice([0, 0.001, 0.1, 1, 4]))
            if self.random.random() < 0.1:
                self.disk.write_back(self.random)

    def attempt(self, work: Callable[[Life], None]) -> None:
        try:
            work(self)
        except MessageRefused as error:
            require("bytes in the log" in str(error), f"refused: {error}")
        except StoreNotWritable as error:
            require(self.is_refused or self.is_full, f"refused without a reason: {error}")
            reason = "No space left on device" if self.is_full else "Input/output error"
            require(reason in str(error), f"the reason is missing: {error}")
            self.note(f"refused: {error}")

    def die_inside(self, work: Callable[[Life], None]) -> None:
        """Be killed between two lines of the program."""
        left = self.random.randint(1, 400)
        disk = self.disk

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal left
            if not any(part in frame.f_code.co_filename for part in TRACED):
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    raise disk.kill()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            self.attempt(work)
        finally:
            sys.settrace(before)

    @staticmethod
    def full(kind: str, path: Path) -> int | None:
        """What a full disk has no room for; files made before can be written where they have some."""
        takes_room = kind in ("create", "make_folder", "allocate") or (kind == "write" and path.name != "checkpoint")
        return errno.ENOSPC if takes_room else None

    def failing_flush(self, after: int) -> Callable[[str, Path], int | None]:
        """Let one flush or other change fail; the next ones succeed, flushes without writing what that one lost."""

        kinds = self.random.choice([("sync",), ("sync", "sync_folder"), ("write", "allocate", "create", "replace")])

        def refuse(kind: str, path: Path) -> int | None:
            nonlocal after
            if kind not in kinds:
                return None
            after -= 1
            if after:
                return None
            self.note(f"{kind} of {path} fails")
            self.is_refused = True
            return errno.EIO

        return refuse

    # -- single kinds of work

    def message(self, topic: str | None = None, **properties: str) -> StoredMessage:
        self.count += 1
        random = self.random
        if random.random() < 0.7:
            properties["UNIQ_KEY"] = f"{self.count:032X}"
        if random.random() < 0.3:
            properties["KEYS"] = " ".join(f"k{number}" for number in random.sample(range(30), random.randint(1, 3)))
        if random.random() < 0.3:
            properties["filling"] = "y" * random.choice([10, 500, 1200])
        if random.random() < 0.5:
            properties["TAGS"] = random.choice(["a", "b"])
        body = b"%d " % self.count + random.randbytes(random.choice([0, 10, 100, 600]))
        topic = topic or random.choice(TOPICS)
        return StoredMessage(
            topic,
            body,
            encode_properties(properties),
            random.randint(0, 1),
            born_ms=self.time.ms,
            born_address=ADDRESS,
        )

    def send(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.parts.store.append(self.message())

    def send_batch(self) -> None:
        self.parts.store.append_batch([self.message() for _ in range(self.random.randint(1, 4))])

    def send_uncounted(self) -> None:
        message = self.message()
        message.sys_flag = SysFlag.HALF  # such records are in no queue
        self.parts.store.append(message)

    def flush(self) -> None:
        """Wait until the disk has it, perhaps while others go on sending."""
        store = self.parts.store
        if self.random.random() < 0.3:
            self.disk.while_syncing = self.send_meanwhile
        waiting = store.wait_flushed(store.max_log_offset)
        before = store.max_log_offset
        store.flush_due()
        self.disk.while_syncing = lambda path: None
        require(waiting.done(), "nobody answers who waits for the disk")
        require(waiting.result() is (not self.is_refused or store.flushed_to >= before), "a wrong answer to who waits")

    def send_meanwhile(self, path: Path) -> None:
        self.disk.while_syncing = lambda path: None
        self.attempt(Life.send)

    def flush_all(self) -> None:
        self.time.pass_by(11)
        self.parts.store.flush_due()

    def index(self) -> None:
        self.parts.store.index_step(0.0 if self.random.random() < 0.3 else 10.0)

    def delete_topic(self) -> None:
        self.parts.store.delete_topic(self.random.choice(TOPICS))

    def expire(self) -> None:
        self.parts.store.retention.expire_now(self.random.choice([0, 5_000]))
        self.parts.store.retention.step(1.0)

    def read(self) -> None:
        """Readers see what was sent, also while the disk refuses to take more."""
        store = self.parts.store
        alive = [each for each in self.model.log if each.is_queued and not each.is_deleted and each.done]
        if alive:
            each = self.random.choice(alive)
            result = store.read(*each.queue, each.message.queue_offset, 1)
            found = [bytes(record) for record in result.records]
            if store.min_log_offset <= each.message.log_offset:
                require(found == [encode(each.message)], f"{each.queue} {each.message.queue_offset} reads {result}")

    def park(self) -> None:
        due = self.time.ms + self.random.choice([1, 500, 2_000, 60_000, 4_000_000])
        message = self.message(TIMER_DELIVER_MS=str(due), UNIQ_KEY=f"timer-{self.count}")
        self.parts.timers.divert(message)
        self.parts.store.append(message)

    def cancel(self) -> None:
        parked = [each for each in self.model.log if each.message.topic == TIMER_TOPIC and each.done]
        if parked:
            properties = self.random.choice(parked).message.properties
            due, key = int(properties["TIMER_OUT_MS"]), properties["UNIQ_KEY"]
            handle = RecallHandle(properties["REAL_TOPIC"], "broker", due, key)
            try:
                for _ in steps_of(self.parts.timers.cancel(handle, born_address=ADDRESS)):
                    pass
            except StoreNotWritable:
                raise
            except MQError:
                pass  # delivered

    def run_timers(self) -> None:
        while self.parts.timers.step() == 0:
            pass

    def delay(self) -> None:
        message = self.message()
        self.parts.levels.divert(
            message, {**decode_properties(message.property_text), "DELAY": str(self.random.choice([1, 2]))}
        )
        self.parts.store.append(message)

    def run_levels(self) -> None:
        while self.parts.levels.deliver() == 0:
            pass

    def half(self) -> None:
        message = self.message(UNIQ_KEY=f"half-{self.count}", PGROUP="p", TRAN_MSG="true")
        self.decisions[message.stored_body] = self.random.choice([SysFlag.COMMIT, SysFlag.ROLLBACK])
        self.parts.halves.prepare(message, decode_properties(message.property_text))
        self.parts.store.append(message)

    def decide(self) -> None:
        begin = self.parts.store.min_log_offset
        copies = [each.message for each in self.model.log if each.message.topic == HALF_TOPIC and each.done]
        copies = [copy for copy in copies if copy.log_offset >= begin]
        if copies:
            self.decide_on(self.random.choice(copies))

    def decide_on(self, copy: StoredMessage) -> None:
        header = EndTransaction(
            producer_group="p",
            half_queue_offset=copy.queue_offset,
            log_offset=copy.log_offset,
            decision=self.decisions[copy.stored_body],
            message_id="x",
        )
        try:
            self.parts.transacting.end(header, Call(code=37, flag=ONE_WAY))
        except StoreError:
            raise
        except BrokerError as error:
            if isinstance(error, StoreNotWritable) or "decided already" not in str(error):
                raise

    def renew(self) -> None:
        halves = self.parts.halves
        copies = [each.message for each in self.model.log if each.message.topic == HALF_TOPIC and each.done]
        undecided = [copy for copy in copies if halves.at(copy.queue_offset) is not None]
        if undecided:
            copy = self.random.choice(undecided)
            halves.renew(halves.find(copy), copy)

    def commit_offsets(self) -> None:
        self.parts.offsets.commit("g", self.random.choice(TOPICS), self.random.randint(0, 3), self.count)

    def save(self) -> None:
        """As a broker does every few seconds."""
        parts = self.parts
        parts.halves.note_progress()
        for save in (parts.offsets.unsaved(), parts.levels.unsaved(), parts.timers.unsaved()):
            if save is not None:
                save()
        parts.topics.persist()

    # -- the end of all

    def finish(self) -> None:
        """Let everything become due, be delivered and decided; then look at what consumers can see."""
        self.disk.refuse = lambda kind, path: None
        self.time.pass_by(5_000)
        self.time.ms += 90_000_000  # also where somebody set the clock back
        self.run_timers()
        self.run_levels()
        log = [each.message for each in (*self.model.dropped, *self.model.log)]
        for copy in [message for message in log if message.topic == HALF_TOPIC]:
            if copy.log_offset >= self.parts.store.min_log_offset:
                self.decide_on(copy)
        log = [each.message for each in (*self.model.dropped, *self.model.log)]
        self.check_timers(log)
        self.check_levels(log)
        self.check_transactions(log)
        self.parts.close()
        self.note_confirmed()

    def check_timers(self, log: list[StoredMessage]) -> None:
        delivered = Counter(delivered_from(memoryview(encode(message))) for message in log)
        cancels = {message.properties.get("UNIQ_KEY") for message in log if "TIMER_DEL_UNIQKEY" in message.properties}
        for parked in log:
            if parked.topic == TIMER_TOPIC and "TIMER_DEL_UNIQKEY" not in parked.properties:
                times = delivered[parked.log_offset]
                most = 0 if parked.properties.get("UNIQ_KEY") in cancels else 1
                require(times == most, f"timer at {parked.log_offset} was delivered {times} times, not {most}")

    def check_levels(self, log: list[StoredMessage]) -> None:
        delivered = {message.stored_body: message for message in log if message.topic in TOPICS}
        times = Counter(message.stored_body for message in log if message.topic in TOPICS)
        parked_times = Counter(message.stored_body for message in log if message.topic == SCHEDULE_TOPIC)
        for parked in log:
            if parked.topic == SCHEDULE_TOPIC:
                found = delivered.get(parked.stored_body)
                require(found is not None, f"delayed message at {parked.log_offset} was not delivered")
                assert found is not None
                count = times[parked.stored_body]
                require(count <= parked_times[parked.stored_body], f"{parked.stored_body[:8]!r} came {count} times")
                due = parked.store_ms + LEVELS_MS[parked.queue_id]
                require(
                    found.store_ms >= due or self.is_clock_set, f"delayed message at {parked.log_offset} came too early"
                )

    def check_transactions(self, log: list[StoredMessage]) -> None:
        seen = Counter(message.stored_body for message in log if message.topic in TOPICS)
        deleted = {each.message.stored_body for each in (*self.model.dropped, *self.model.log) if each.is_deleted}
        for body in {message.stored_body for message in log if message.topic == HALF_TOPIC}:
            times = int(self.decisions[body] == SysFlag.COMMIT)
            require(
                seen[body] == times or body in deleted,
                f"transaction {body[:8]!r} is seen {seen[body]} times, not {times}",
            )
        require(not self.parts.halves.undecided(), "transactions stay undecided")


WORKS: dict[Callable[[Life], None], int] = {
    Life.send: 12,
    Life.send_batch: 6,
    Life.send_uncounted: 1,
    Life.flush: 8,
    Life.flush_all: 2,
    Life.index: 4,
    Life.delete_topic: 1,
    Life.expire: 2,
    Life.read: 3,
    Life.park: 4,
    Life.cancel: 1,
    Life.run_timers: 3,
    Life.delay: 2,
    Life.run_levels: 2,
    Life.half: 4,
    Life.decide: 3,
    Life.renew: 1,
    Life.commit_offsets: 2,
    Life.save: 3,
}
