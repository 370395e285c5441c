"""A consumer's rates by topic, and its replies to brokers' requests: new members, reset offsets, status, running info.

Counting costs a few additions per pull and listener call; rates are computed on request.
Source: RocketMQ 4.9.8, ConsumerStatsManager, ClientRemotingProcessor.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, dataclass, field

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.cluster.namespace import Namespace
from pyromq.client.consumer.pulling import Tally
from pyromq.clock import Clock
from pyromq.errors import BrokerError
from pyromq.message import MessageQueue
from pyromq.net.tasks import Tasks, every
from pyromq.remoting.bodies import (
    ConsumeRates,
    ConsumerEntry,
    ConsumerRunning,
    ConsumerStatus,
    PulledQueue,
    ResetOffsets,
    decode_body,
    encode_body,
)
from pyromq.remoting.codes import VERSION_NAME
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    ConsumerIdsChanged,
    ConsumerRunningState,
    ConsumerStatusOfClient,
    ResetClientOffset,
)

SAMPLE_SECONDS = 10.0
MINUTE_SAMPLES = 6  # samples kept for rates of the last minute, 10 s apart
HOUR_SAMPLES = 6  # samples kept for counts of the last hour, 10 min apart
SAMPLES_PER_HOUR_SAMPLE = 60


@dataclass(slots=True)
class _Course:
    """A topic's present tally, and earlier copies of it, each with its time (monotonic seconds), oldest first."""

    tally: Tally
    minute: deque[tuple[float, Tally]] = field(default_factory=lambda: deque(maxlen=MINUTE_SAMPLES))
    hour: deque[tuple[float, Tally]] = field(default_factory=lambda: deque(maxlen=HOUR_SAMPLES))


class ConsumptionRates:
    """The tallies of one consumer by topic, and the rates computed from them. `sample` must be called every 10 s."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._courses: dict[str, _Course] = {}
        self._samples_taken = 0

    def tally(self, topic: str) -> Tally:
        """Return the tally (counters) of a topic; a new one is created on first use."""
        course = self._courses.get(topic)
        if course is None:
            begin = (self.clock.monotonic(), Tally())
            course = self._courses[topic] = _Course(Tally())
            course.minute.append(begin)
            course.hour.append(begin)
        return course.tally

    def sample(self) -> None:
        """Keep a copy of all tallies, with which later tallies are compared."""
        now = self.clock.monotonic()
        self._samples_taken += 1
        for course in self._courses.values():
            copy = Tally(*astuple(course.tally))
            course.minute.append((now, copy))
            if self._samples_taken % SAMPLES_PER_HOUR_SAMPLE == 0:
                course.hour.append((now, copy))

    def of(self, topic: str) -> ConsumeRates:
        """Return a topic's messages per second in the last minute, and failed messages in the last hour.

        Also returned are the average times in ms per pull and per listener call.
        """
        tally = self.tally(topic)
        course = self._courses[topic]
        began, then = course.minute[0]
        minute, hour = tally.since(then), tally.since(course.hour[0][1])
        # At least one sample interval, or the first pull would look like a burst.
        seconds = max(self.clock.monotonic() - began, SAMPLE_SECONDS)
        calls = minute if minute.calls else hour
        return ConsumeRates(
            pull_rt=1000 * minute.pull_seconds / minute.pulls if minute.pulls else 0.0,
            pull_tps=minute.pulled / seconds,
            consume_rt=1000 * calls.call_seconds / calls.calls if calls.calls else 0.0,
            consume_ok_tps=minute.consumed / seconds,
            consume_failed_tps=minute.failed / seconds,
            consume_failed_count=hour.failed,
        )


@dataclass(frozen=True, slots=True)
class ConsumerInternals:
    """The parts of a consumer that brokers and administrators may see and change.

    `entry` returns the consumer's heartbeat entry, `positions` the offset to consume next in each queue. `settings` are
    further properties of the running info. `reset(offsets)` moves assigned queues; `wake()` triggers a rebalance.
    """

    config: ConsumerConfig
    settings: dict[str, str]
    entry: Callable[[], ConsumerEntry]
    positions: Callable[[], dict[MessageQueue, int]]
    queues: Callable[[], dict[MessageQueue, PulledQueue]]
    reset: Callable[[dict[MessageQueue, int]], None]
    wake: Callable[[], None]

    def check(self, group: str) -> None:
        """Raise `BrokerError` if `group`, the group named in a request, is not this consumer's group."""
        if group != self.entry().group:
            raise BrokerError(f"The Consumer Group <{group}> not exist in the consumer")


class ConsumerStatusProcessor:
    """Replies to requests about one consumer after `start`. The consumer's pull loops and listeners update `rates`.

    Topic names in requests include the namespace of `names`.
    """

    def __init__(self, internals: ConsumerInternals, clock: Clock, names: Namespace) -> None:
        self.rates = ConsumptionRates(clock)
        self._started_ms = 0
        self._internals = internals
        self._names = names
        self._clock = clock

    def start(self, tasks: Tasks) -> None:
        """Note the consumer's start time, and start sampling its rates."""
        self._started_ms = self._clock.now_ms()
        tasks.start(every(SAMPLE_SECONDS, self.rates.sample, self._clock), name="sample rates")

    @answers(ConsumerIdsChanged)
    def members_changed(self, header: ConsumerIdsChanged, call: Call) -> Reply:
        self._internals.wake()
        return Reply()

    @answers(ResetClientOffset)
    def reset(self, header: ResetClientOffset, call: Call) -> Reply:
        """Reset queues to the offsets that an administrator sent, in either form of ResetOffsetBody."""
        self._internals.check(header.group)
        table = decode_body(ResetOffsets, call.body).offsets
        if isinstance(table, list):
            table = {MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset for each in table}
        self._internals.reset({self._names.unwrap_queue(queue): offset for queue, offset in table.items()})
        return Reply()

    @answers(ConsumerStatusOfClient)
    def status(self, header: ConsumerStatusOfClient, call: Call) -> Reply:
        """Reply with the offset to consume next in each queue of a topic."""
        self._internals.check(header.group)
        names = self._names
        positions = {names.wrap_queue(queue): offset for queue, offset in self._internals.positions().items()}
        of_topic = {queue: offset for queue, offset in sorted(positions.items()) if queue.topic == header.topic}
        return Reply(body=encode_body(ConsumerStatus(queues=of_topic)))

    @answers(ConsumerRunningState)
    def running(self, header: ConsumerRunningState, call: Call) -> Reply:
        """Reply with settings, queues, subscriptions and rates, and on request the stacks of threads and tasks."""
        self._internals.check(header.consumer_group)
        entry, config = self._internals.entry(), self._internals.config
        names = self._names
        queues = {names.wrap_queue(queue): each for queue, each in self._internals.queues().items()}
        topics = {each.topic for each in entry.subscriptions} | {queue.topic for queue in queues}
        body = ConsumerRunning(
            properties={
                "PROP_CONSUME_TYPE": entry.consume_type,
                "PROP_CLIENT_VERSION": VERSION_NAME,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "consumerGroup": entry.group,
                "messageModel": entry.message_model,
                "consumeFromWhere": entry.consume_from,
                "pullBatchSize": str(config.pull_count),
                "pullThresholdForQueue": str(config.buffered_messages),
                **self._internals.settings,
            },
            subscriptions=entry.subscriptions,
            queues=dict(sorted(queues.items())),
            rates={topic: self.rates.of(names.unwrap(topic)) for topic in sorted(topics)},
            stack=stacks() if header.stack_wanted else None,
        )
        return Reply(body=encode_body(body))


def stacks() -> str:
    """Return the stacks of all threads, then those of the event loop's tasks, innermost call first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    texts = [
        _text(names.get(ident, "unknown"), f"TID: {ident}", traceback.extract_stack(frame))
        for ident, frame in sorted(sys._current_frames().items())
    ]
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        frames = [traceback.FrameSummary(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in task.get_stack()]
        texts.append(_text(task.get_name(), "TASK", frames))
    return "\n".join(texts)


def _text(name: str, kind: str, frames: list[traceback.FrameSummary]) -> str:
    lines = [f"{name:<40} {kind}"]
    lines += [f"{name:<40} {frame.name}({frame.filename}:{frame.lineno})" for frame in reversed(frames)]
    return "".join(f"{line}\n" for line in lines)
