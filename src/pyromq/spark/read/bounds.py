"""Finds the offsets at which a read begins and ends in each queue, from the read's options. No Spark here.

An option gives a position as earliest, latest, a group's committed offset, a time, or an offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import MQError, TopicNotFound, Unavailable, UsageError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.names import is_system_topic
from pyromq.spark.option_values import EARLIEST, LATEST, OffsetTable
from pyromq.spark.read.plan import QueueRange
from pyromq.spark.read.read_options import ReadOptions

logger = logger_of(__name__)

Bounds = tuple[int, int]  # of a queue: the first stored offset, the offset of the next message
Positions = dict[MessageQueue, int]


class DataLoss(MQError):
    """Messages that a read must return no longer exist."""


class ReadBounds:
    """Finds the queues that a read selects, and the offsets at which the read begins and ends in each queue."""

    def __init__(self, options: ReadOptions, client: QueueReader) -> None:
        self._options = options
        self._client = client

    def ranges(self) -> list[QueueRange]:
        """Return the offset range of every queue that a batch reads.

        Raises `UsageError` for queues that do not exist or would end before they begin. Raises `DataLoss` for offsets
        that do not exist, unless failOnDataLoss is false.
        """
        self.check_absent()
        bounds = self._client.live_bounds(self.queue_bounds())
        starts = self.beginnings(bounds, default="earliest")
        ends = self._endings(bounds)
        if self._options.starting_offsets == "group":  # the group may have read beyond the end of this batch
            ends = {queue: max(end, starts[queue]) for queue, end in ends.items()}
        for queue in bounds:
            if starts[queue] > ends[queue]:
                raise UsageError(
                    f"{queue_name(queue)} would begin at {starts[queue]} and end at {ends[queue]}; correct the options "
                    "that say where it begins and ends"
                )
        return [QueueRange(queue, starts[queue], ends[queue]) for queue in bounds]

    def queue_bounds(self, known: Collection[MessageQueue] = ()) -> dict[MessageQueue, Bounds]:
        """Return first and end offset of each queue that the options select, in order of the queues.

        `known` queues were read before. Known queues that no longer exist are left out. Raises `TopicNotFound` and
        `UsageError` for other missing queues, and `Unavailable` while a required broker is not registered.
        """
        self.check_registered(self._options.required_brokers, "option requiredBrokers names it")
        if self._options.assign:
            return self._assigned_bounds(known)
        topics = self._options.subscribe or self._matching(known)
        return self._topic_bounds(topics, known)

    def check_registered(self, brokers: Iterable[str], why: str) -> None:
        """Raise `Unavailable` for a broker that is not registered, unless option retiredBrokers names the broker.

        `why` is the end of the error text: the reason why the broker is required.
        """
        wanted = set(brokers).difference(self._options.retired_brokers)
        if not wanted:
            return
        registered = self._client.brokers()
        if missing := sorted(wanted.difference(registered)):
            there = f"those registered are {', '.join(registered)}" if registered else "no broker is registered"
            raise Unavailable(
                f"broker {missing[0]} is not registered at {self._options.namesrv}, and {why} ({there}); start the"
                " broker, or name it in option retiredBrokers if it is out of service for good"
            )

    def check_absent(self, known: Collection[tuple[str, str]] = (), *, required: bool = True) -> None:
        """Raise `Unavailable` if a broker that had topics to read is no longer registered.

        Log a warning instead if failOnDataLoss or `required` is false. Brokers that options name, and pairs of topic
        and broker in `known`, are checked elsewhere.
        """
        if self._options.assign:
            return
        for broker, topics in sorted(self._client.absent().items()):
            selected = self._options.subscribe or self._matches(topics)
            missing = sorted(topic for topic in set(topics).intersection(selected) if (topic, broker) not in known)
            if not missing or broker in (*self._options.retired_brokers, *self._options.required_brokers):
                continue
            names = self._options.namesrv
            absence = f"broker {broker} is not registered at {names}, and had topic {missing[0]} when it left"
            if required and self._options.fail_on_data_loss:
                raise Unavailable(
                    f"{absence}; start the broker, name it in option retiredBrokers if it is out of service for good,"
                    " or set failOnDataLoss to false to read the rest"
                )
            logger.warning("%s; reading the rest", absence)

    def beginnings(self, bounds: Mapping[MessageQueue, Bounds], *, default: str) -> Positions:
        """Return the first offset to read in each queue.

        `default`, earliest or latest, applies if no option says where to begin. If a queue has no message since the
        given time, startingOffsetsByTimestampStrategy decides between the queue's end and a `UsageError`.
        """
        if self._options.starting_ms is not None:
            times = dict.fromkeys(bounds, self._options.starting_ms)
            return self._since(bounds, times, "startingTimestamp")
        if self._options.starting_times is not None:
            times, name = self._options.starting_times, "startingOffsetsByTimestamp"
            self._check_named(times, bounds, name=name)
            return {queue: first for queue, (first, _) in bounds.items()} | self._since(bounds, times, name)
        if self._options.starting_offsets == "group":
            stored = self._client.committed(bounds, self._options.group)
            given = {queue: bounds[queue][0] if offset is None else offset for queue, offset in stored.items()}
            return self._checked(f"the offset that group {self._options.group} has committed", given, bounds)
        place = self._options.starting_offsets or default
        if isinstance(place, str):
            return {queue: _edge(place, each) for queue, each in bounds.items()}
        return self._from_table(place, bounds, name="startingOffsets")

    def _assigned_bounds(self, known: Collection[MessageQueue]) -> dict[MessageQueue, Bounds]:
        new = [queue for queue in self._options.assign if queue not in known]
        self.check_registered({queue.broker_name for queue in new}, "option assign names it")
        existing = self._topic_bounds(sorted({queue.topic for queue in self._options.assign}), known)
        if missing := [queue for queue in new if queue not in existing]:
            raise UsageError(f"option assign names {queue_name(missing[0])}, which does not exist; correct the option")
        return {queue: existing[queue] for queue in sorted(self._options.assign) if queue in existing}

    def _topic_bounds(self, topics: Iterable[str], known: Collection[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """Return first and end offset of the queues of these topics.

        A deleted topic is left out if its queues are known or a pattern matched the topic.
        """
        try:
            return self._client.bounds(topics)
        except TopicNotFound:
            pass  # at least one topic is missing: query each topic separately
        may_be_deleted = {queue.topic for queue in known}.union(topics if self._options.subscribe_pattern else ())
        found: dict[MessageQueue, Bounds] = {}
        for topic in topics:
            try:
                found |= self._client.bounds([topic])
            except TopicNotFound as error:
                if topic in may_be_deleted:
                    continue
                self._check_any_broker(error)
                raise
        return dict(sorted(found.items()))

    def _check_any_broker(self, error: TopicNotFound) -> None:
        """Raise `Unavailable` if the topic is missing because no broker is registered."""
        if not self._client.brokers():
            raise Unavailable(f"no broker is registered at {self._options.namesrv}: {error}") from error

    def _matching(self, known: Collection[MessageQueue]) -> list[str]:
        names = self._matches(self._client.topics())
        if not names and not known:
            pattern = self._options.subscribe_pattern
            assert pattern is not None, "else `_matches` raises"
            error = TopicNotFound(f"no topic matches subscribePattern {pattern.pattern!r}")
            self._check_any_broker(error)
            raise error
        return names

    def _matches(self, topics: Iterable[str]) -> list[str]:
        pattern = self._options.subscribe_pattern
        assert pattern is not None, "the options have one of the three"
        names = [name for name in topics if pattern.fullmatch(name) and not is_system_topic(name)]
        if not pattern.pattern.startswith("%"):  # retry and dead letter topics match only a pattern that begins with %
            names = [name for name in names if not name.startswith("%")]
        return names

    def _endings(self, bounds: Mapping[MessageQueue, Bounds]) -> Positions:
        if self._options.ending_ms is not None:
            return {queue: self._client.first_since(queue, self._options.ending_ms, bounds[queue]) for queue in bounds}
        if (times := self._options.ending_times) is not None:
            self._check_named(times, bounds, name="endingOffsetsByTimestamp")
            found = {queue: self._client.first_since(queue, ms, bounds[queue]) for queue, ms in times.items()}
            return {queue: end for queue, (_, end) in bounds.items()} | found
        if isinstance(self._options.ending_offsets, str):
            return {queue: _edge(self._options.ending_offsets, each) for queue, each in bounds.items()}
        return self._from_table(self._options.ending_offsets, bounds, name="endingOffsets")

    def _since(self, bounds: Mapping[MessageQueue, Bounds], times: Mapping[MessageQueue, int], name: str) -> Positions:
        """Return the offset of the first message stored at a time or later, for each queue in `times`.

        Without such a message, the offset is the queue's end.
        """
        found = {queue: self._client.first_since(queue, time_ms, bounds[queue]) for queue, time_ms in times.items()}
        none = [queue for queue, offset in found.items() if offset >= bounds[queue][1]]
        if none and self._options.starting_missing == "error":
            raise UsageError(
                f"{queue_name(none[0])} has no message stored at {times[none[0]]} ms ({name}) or later; set "
                "startingOffsetsByTimestampStrategy to latest to begin at its end"
            )
        return found

    def _check_named(self, table: OffsetTable, bounds: Mapping[MessageQueue, Bounds], *, name: str) -> None:
        """Raise `UsageError` if the table of option `name` has a queue that is not read.

        Raise `Unavailable` if the broker of that queue is not registered.
        """
        for queue in table:
            if queue not in bounds:
                self.check_registered([queue.broker_name], f"option {name} names it")
                raise UsageError(
                    f"option {name} names {queue_name(queue)}, which this query does not read; leave the queue out"
                )

    def _from_table(self, table: OffsetTable, bounds: Mapping[MessageQueue, Bounds], *, name: str) -> Positions:
        """Return the offset of each queue from the table of option `name`.

        Queues missing in the table are read completely.
        """
        self._check_named(table, bounds, name=name)
        other = LATEST if name == "endingOffsets" else EARLIEST
        places = {queue: _resolved(table.get(queue, other), each) for queue, each in bounds.items()}
        return self._checked(name, places, bounds)

    def _checked(self, name: str, given: Positions, bounds: Mapping[MessageQueue, Bounds]) -> Positions:
        """Return the offsets, each moved into its queue's bounds.

        Raises `DataLoss` for an offset outside, unless failOnDataLoss is false.
        """
        places = {}
        for queue, offset in given.items():
            first, end = bounds[queue]
            if not first <= offset <= end:
                loss = f"{name} of {queue_name(queue)} is {offset}; the queue holds {first} to {end}"
                report_loss(self._options, loss)
            places[queue] = min(max(offset, first), end)
        return places


def queue_name(queue: MessageQueue) -> str:
    """Return the name of a queue for error texts."""
    return f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}"


def deletion(place: tuple[str, str], positions: Mapping[MessageQueue, int]) -> str:
    """Return the error text for a topic that was deleted at a broker.

    `positions` are the offsets to which its queues were read.
    """
    topic, broker = place
    read = {queue.queue_id: offset for queue, offset in positions.items() if queue[:2] == place}
    reached = ", ".join(f"queue {queue_id} to {offset}" for queue_id, offset in sorted(read.items()))
    return f"topic {topic} at {broker} was deleted; it was read to these offsets, later messages are lost: {reached}"


def report_loss(options: ReadOptions, loss: str) -> None:
    """Raise `DataLoss` with the description of a loss; if option failOnDataLoss is false, only log it."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss}; set failOnDataLoss to false to read the rest")
    logger.warning("%s; reading the rest", loss)


def _edge(place: str, bounds: Bounds) -> int:
    return bounds[0] if place == "earliest" else bounds[1]


def _resolved(offset: int, bounds: Bounds) -> int:
    return bounds[0] if offset == EARLIEST else bounds[1] if offset == LATEST else offset
