"""Plans the micro-batches of a stream on the driver: their ends, lost messages, and the offsets stored at brokers.

The state here lasts for one run of a query. The offsets in the query's checkpoint hold everything that lasts longer.
No Spark here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pyromq.client.blocking.consumers import QueueReader
from pyromq.clock import Clock
from pyromq.errors import MQError, TopicNotFound, Unavailable, UsageError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.spark.option_values import LATEST
from pyromq.spark.read.bounds import Bounds, Positions, ReadBounds, deletion, queue_name, report_loss
from pyromq.spark.read.plan import QueueRange, share
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.read.stream_offset import NO_MESSAGE, Mark, QueryStart, StreamOffset, TopicAtBroker

logger = logger_of(__name__)

SAMPLE = 32  # number of messages whose mean size stands for the whole backlog


class StreamPlanning:
    """Plans the micro-batches of one run of a query."""

    def __init__(self, options: ReadOptions, client: QueueReader, clock: Clock) -> None:
        self._options = options
        self._client = client
        self._queues = ReadBounds(options, client)
        self._clock = clock
        self._first: StreamOffset | None = None
        self.ends_here = False  # whether this run ends at the ends of queues when it began (Trigger.AvailableNow)
        self._target: Positions | None = None  # ends of this run with AvailableNow, set by the first micro-batch
        self._latest: Positions = {}
        self._absent: set[TopicAtBroker] = set()
        self._deleted: set[TopicAtBroker] = set()  # deleted topics that were reported, with failOnDataLoss false
        self._waiting_since = clock.monotonic()
        self._commit_seconds = options.commit_interval_ms / 1000
        self._committed: Positions = {}
        self._committed_at: float | None = None

    def first(self) -> StreamOffset:
        """Return the offset where a query without a checkpoint begins. All calls of a run return the same offset."""
        if self._first is None:
            began = QueryStart(self._clock.now_ms(), tuple(self._client.brokers()))
            self._queues.check_absent(required=self.ends_here)
            bounds = self._client.live_bounds(self._queues.queue_bounds())
            positions = self._queues.beginnings(bounds, default="latest")
            table = self._options.starting_offsets
            is_new = self._begins_at_ends or (isinstance(table, dict) and LATEST in table.values())
            self._first = StreamOffset(positions, self._marks(positions, bounds, {}), began, is_new=is_new)
        return self._first

    def end_here(self) -> None:
        """End this run at the present ends of the queues, for Trigger.AvailableNow."""
        self.ends_here = True

    def next(self, start: StreamOffset, *, limited: bool = True) -> StreamOffset:
        """Return the end of the next micro-batch; an offset with equal positions if there is nothing to read.

        With `limited`, limits in the options apply. Raises `DataLoss` unless failOnDataLoss is false, `UsageError` for
        a checkpoint of other topics, and `Unavailable` if the run cannot end without the queues of a broker that is not
        registered.
        """
        self._check_topics(start)
        try:
            return self._next(start, limited)
        except TopicNotFound as error:
            if self._options.subscribe_pattern is None and not self._client.deleted(map(_place, start.positions)):
                raise
            raise Unavailable(f"a topic was deleted during planning: {error}") from error

    def _next(self, start: StreamOffset, limited: bool) -> StreamOffset:
        if self.ends_here and self._target is None:
            self._queues.check_absent(set(map(_place, start.positions)))
        bounds = self._queues.queue_bounds(start.positions)
        bounds |= self._client.live_bounds({queue: bounds[queue] for queue in bounds.keys() - start.positions.keys()})
        bounds = self._without_slaves_behind(start, bounds)
        self._latest = {queue: end for queue, (_, end) in bounds.items()}
        recreated = self._report_losses(start, bounds)
        if self.ends_here and self._target is None:
            self._target = self._latest
        begin = {
            queue: place for queue in bounds if (place := self._begin(start, queue, bounds, recreated)) is not None
        }
        ends = self._ends(begin, bounds, limited)
        moved = {
            queue: end
            for queue, end in ends.items()
            if end != start.positions.get(queue) or (_place(queue) in recreated and end > begin[queue])
        }
        if not moved:
            return replace(start, is_new=False)
        self._waiting_since = self._clock.monotonic()
        marks = start.marks | recreated
        return StreamOffset(
            start.positions | moved,
            marks | self._marks(moved, bounds, marks),
            start.began,
            {queue: begin[queue] for queue in moved if queue not in start.positions or _place(queue) in recreated},
        )

    def latest(self) -> StreamOffset | None:
        """Return the ends of all queues that the last call of `next` found; None before the first call."""
        return StreamOffset(self._latest) if self._latest else None

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
        """Return the ranges of a micro-batch, without queues of retired brokers.

        The ranges depend only on the two offsets, so a repeated micro-batch reads the same messages.
        """
        retired = self._retired()
        return [
            QueueRange(queue, end.begins.get(queue, start.positions.get(queue, 0)), stop)
            for queue, stop in end.positions.items()
            if queue.broker_name not in retired
        ]

    def commit(self, reached: StreamOffset, *, last: bool = False) -> None:
        """Commit the query's offsets at the brokers, under the query's group.

        Offsets are committed once per commitInterval, and at the `last` call of a run. A failure is only logged: tools
        show old offsets until the next call.
        """
        changed = {
            queue: offset
            for queue, offset in reached.positions.items()
            if self._committed.get(queue) != offset and _place(queue) not in self._absent | self._deleted
        }
        if not self._options.does_commit or not changed:
            return
        now = self._clock.monotonic()
        if not last and self._committed_at is not None and now - self._committed_at < self._commit_seconds:
            return
        try:
            if self._committed_at is None:
                self._client.announce_group(self._options.group)
            self._client.commit(changed, self._options.group)
        except MQError as error:
            logger.warning("offsets of group %s are not committed yet: %s", self._options.group, error)
        else:
            self._committed |= changed
        self._committed_at = now

    def _check_topics(self, start: StreamOffset) -> None:
        if self._options.subscribe_pattern is not None:
            return
        wanted = self._options.subscribe or {queue.topic for queue in self._options.assign}
        if others := sorted(start.topics.difference(wanted)):
            raise UsageError(
                f"the checkpoint is of topic {', '.join(others)}, which this query does not read; "
                "give it a new checkpoint location"
            )
        if self._options.assign and (left := sorted(start.positions.keys() - set(self._options.assign))):
            raise UsageError(
                f"the checkpoint has {queue_name(left[0])}, which option assign does not name; name the queue, or give"
                " the query a new checkpoint location"
            )

    def _retired(self) -> set[str]:
        """Return the brokers of option retiredBrokers that are not registered."""
        names = set(self._options.retired_brokers)
        return names.difference(self._client.brokers()) if names else names

    def _without_slaves_behind(
        self, start: StreamOffset, bounds: dict[MessageQueue, Bounds]
    ) -> dict[MessageQueue, Bounds]:
        """Leave out topics at brokers whose slave answered and ends before the offset reached.

        Such a slave lacks the newest messages, which are not lost.
        """
        behind = {
            _place(queue)
            for queue, (_, end) in bounds.items()
            if end < start.positions.get(queue, 0) and not self._client.has_master(queue)
        }
        return {queue: each for queue, each in bounds.items() if _place(queue) not in behind}

    def _report_losses(self, start: StreamOffset, bounds: Mapping[MessageQueue, Bounds]) -> dict[TopicAtBroker, Mark]:
        """Report lost messages: raise `DataLoss` or log.

        Return new marks for topics that were created again, by topic and broker.
        """
        recreated = {}
        for place in self._created_again(start, bounds):
            report_loss(
                self._options,
                f"topic {place[0]} at {place[1]} was deleted and created again; its old messages are lost",
            )
            recreated[place] = Mark(0, NO_MESSAGE, 0, start.marks[place].made + 1)
        there = {_place(queue) for queue in bounds}
        self._report_missing({_place(queue) for queue in start.positions} - there, start, bounds)
        for queue, offset in start.positions.items():
            if _place(queue) in there and _place(queue) not in recreated:
                self._report_lost_offsets(queue, offset, bounds)
        return recreated

    def _report_missing(
        self, missing: Collection[TopicAtBroker], start: StreamOffset, bounds: Mapping[MessageQueue, Bounds]
    ) -> None:
        """Report deleted topics. A queue whose broker is not registered is read later: no message of the queue is lost.

        Raises `Unavailable` if the run cannot end without such a queue.
        """
        deleted = self._client.deleted(missing) if missing else set()
        if new := sorted(deleted - self._deleted):
            report_loss(self._options, "; ".join(deletion(place, start.positions) for place in new))
        self._deleted = deleted
        retired = self._retired()
        absent = {place for place in missing if place not in deleted}
        waited_for = sorted(
            _place(queue)
            for queue, offset in start.positions.items()
            if _place(queue) in absent and queue.broker_name not in retired and self._is_unread(queue, offset)
        )
        if waited_for and (self.ends_here or not bounds):
            topic, broker = waited_for[0]
            self._queues.check_registered([broker], f"topic {topic} was read from it before")
            raise Unavailable(
                f"topic {topic} at broker {broker} is not readable any more; restore its permission to read"
            )
        for topic, broker in sorted(absent - self._absent):
            state = (
                "is retired; its unread messages are skipped"
                if broker in retired
                else "is not registered; its queues are read when it is back"
            )
            logger.warning("broker %s of topic %s %s", broker, topic, state)
        self._absent = absent

    def _is_unread(self, queue: MessageQueue, offset: int) -> bool:
        """Return whether a run with a fixed end still has to read this queue.

        Return True while the end is not known.
        """
        return self._target is None or offset < self._target.get(queue, 0)

    def _report_lost_offsets(self, queue: MessageQueue, offset: int, bounds: Mapping[MessageQueue, Bounds]) -> None:
        """Report lost offsets of a queue whose broker is registered."""
        if queue not in bounds:
            report_loss(self._options, f"{queue_name(queue)} no longer exists; it was read to {offset}")
            return
        first, end = bounds[queue]
        if offset < first:
            report_loss(
                self._options,
                f"{queue_name(queue)}: offsets {offset} to {first - 1} were deleted, {first - offset} in all; "
                f"the queue holds {first} to {end}",
            )
        elif offset > end:
            report_loss(
                self._options,
                f"{queue_name(queue)} was read to {offset}, but ends at {end}: it was truncated or created again",
            )

    def _created_again(self, start: StreamOffset, bounds: Mapping[MessageQueue, Bounds]) -> list[TopicAtBroker]:
        """Return the topics with another message at their mark's offset, or whose queue ends before that offset."""
        again = []
        places = {}
        for place, mark in start.marks.items():
            queue = MessageQueue(*place, mark.queue_id)
            first, end = bounds.get(queue, (mark.offset + 1, mark.offset + 1))
            if end <= mark.offset:
                again += [place] if queue in bounds else []
            elif first <= mark.offset:
                places[queue] = mark.offset
        for queue, stored in self._client.store_times(places).items():
            place = _place(queue)
            if stored is not None and stored != start.marks[place].stored_ms:
                again.append(place)
        return again

    def _begin(
        self,
        start: StreamOffset,
        queue: MessageQueue,
        bounds: Mapping[MessageQueue, Bounds],
        recreated: Mapping[TopicAtBroker, Mark],
    ) -> int | None:
        """Return the first offset of the next micro-batch in a queue; None for a new queue without messages."""
        first, end = bounds[queue]
        place = start.positions.get(queue)
        if place is None and start.began is not None and queue.broker_name not in start.began.brokers:
            return self._begin_later(queue, bounds[queue], start.began)
        if place is None:
            return end if self._options.new_queues == "latest" else first if end > first else None
        if _place(queue) in recreated:
            return first
        return min(max(place, first), end)

    @property
    def _begins_at_ends(self) -> bool:
        """Whether a query without a checkpoint begins at the ends of the queues, which move with every new message."""
        options = self._options
        by_time = options.starting_ms is not None or options.starting_times is not None
        return not by_time and options.starting_offsets in (None, "latest")

    def _begin_later(self, queue: MessageQueue, bounds: Bounds, began: QueryStart) -> int:
        """Return the first offset to read in a queue whose broker was not registered when the query began.

        The query would have begun at this offset if the broker had been registered.
        """
        options = self._options
        if self._begins_at_ends:
            return self._client.first_since(queue, began.ms, bounds)
        if options.starting_times is not None or isinstance(options.starting_offsets, dict):
            return bounds[0]  # the table names other queues: the query waited for the brokers in the table
        return self._queues.beginnings({queue: bounds}, default="latest")[queue]

    def _ends(self, begin: Positions, bounds: Mapping[MessageQueue, Bounds], limited: bool) -> Positions:
        ends = {queue: bounds[queue][1] for queue in begin}
        if self._target is not None:
            target = self._target
            ends = {queue: max(min(end, target.get(queue, 0)), begin[queue]) for queue, end in ends.items()}
        backlogs = {queue: ends[queue] - begin[queue] for queue in begin}
        total = sum(backlogs.values())
        if not limited:
            return ends
        wanted = self._options.min_rows
        if self._target is None and wanted and total < wanted and not self._waited_enough():
            return begin
        limit = self._max_rows(begin, backlogs)
        if limit is None or total <= limit:
            return ends
        shares = share(backlogs, limit)
        return {queue: begin[queue] + shares.get(queue, 0) for queue in begin}

    def _waited_enough(self) -> bool:
        return self._clock.monotonic() - self._waiting_since >= self._options.max_delay_ms / 1000

    def _max_rows(self, begin: Positions, backlogs: Mapping[MessageQueue, int]) -> int | None:
        """Return the limit of a micro-batch in rows, None: no limit.

        A limit in bytes is divided by the mean size of messages in the longest backlog.
        """
        max_rows, max_bytes = self._options.max_rows, self._options.max_bytes
        if max_bytes is None or not any(backlogs.values()):
            return max_rows
        queue = max(backlogs, key=lambda each: backlogs[each])
        found = self._client.pull(queue, begin[queue], SAMPLE)
        count = found.next_offset - begin[queue]
        if not found.raw or count <= 0:
            return max_rows
        rows = max(max_bytes * count // len(found.raw), 1)
        return rows if max_rows is None else min(rows, max_rows)

    def _marks(
        self, positions: Positions, bounds: Mapping[MessageQueue, Bounds], known: Mapping[TopicAtBroker, Mark]
    ) -> dict[TopicAtBroker, Mark]:
        """Return a mark for each topic and broker: the last message before the furthest position in its queues."""
        furthest: dict[TopicAtBroker, MessageQueue] = {}
        for queue, offset in positions.items():
            place = _place(queue)
            if offset > bounds[queue][0] and (place not in furthest or offset > positions[furthest[place]]):
                furthest[place] = queue
        times = self._client.store_times({queue: positions[queue] - 1 for queue in furthest.values()})
        return {
            place: Mark(queue.queue_id, positions[queue] - 1, stored, known[place].made if place in known else 0)
            for place, queue in furthest.items()
            if (stored := times[queue]) is not None
        }


def _place(queue: MessageQueue) -> TopicAtBroker:
    return queue.topic, queue.broker_name
