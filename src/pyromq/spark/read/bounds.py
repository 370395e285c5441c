"""Finds the offsets at which a read begins and ends in each queue, from its options. No Spark here.

A position is earliest, latest, a group's offset, by time, or given.
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

Bounds = tuple[int, int]  # the first stored offset, the offset of the next message
Positions = dict[MessageQueue, int]


class DataLoss(MQError):
    """Messages to read no longer exist."""


def plan_ranges(options: ReadOptions, client: QueueReader) -> list[QueueRange]:
    """Return the range of every queue that a batch reads.

    Raises `UsageError` for queues that do not exist or end before they begin, and with failOnDataLoss `DataLoss` for
    offsets that do not exist.
    """
    check_absent(options, client)
    bounds = client.live_bounds(queue_bounds(options, client))
    starts = beginnings(options, client, bounds, default="earliest")
    ends = _endings(options, client, bounds)
    if options.starting_offsets == "group":  # the group may have read beyond the end of this batch
        ends = {queue: max(end, starts[queue]) for queue, end in ends.items()}
    for queue in bounds:
        if starts[queue] > ends[queue]:
            raise UsageError(
                f"{queue_name(queue)} would begin at {starts[queue]} and end at {ends[queue]}; correct the options "
                "that say where it begins and ends"
            )
    return [QueueRange(queue, starts[queue], ends[queue]) for queue in bounds]


def queue_bounds(
    options: ReadOptions, client: QueueReader, known: Collection[MessageQueue] = ()
) -> dict[MessageQueue, Bounds]:
    """Return the bounds of all queues that the options select, in order. `known` queues were read before.

    Known queues that do not exist now are left out. Raises `TopicNotFound` and `UsageError` for other missing queues,
    and `Unavailable` while a required broker is not registered.
    """
    check_registered(options, client, options.required_brokers, "option requiredBrokers names it")
    if options.assign:
        return _assigned_bounds(options, client, known)
    topics = options.subscribe or _matching(options, client, known)
    return _topic_bounds(options, client, topics, known)


def check_registered(options: ReadOptions, client: QueueReader, brokers: Iterable[str], why: str) -> None:
    """Raise `Unavailable` for a broker that is not registered, unless option retiredBrokers names it.

    `why` ends the text: the reason why the broker is required.
    """
    wanted = set(brokers).difference(options.retired_brokers)
    if not wanted:
        return
    registered = client.brokers()
    if missing := sorted(wanted.difference(registered)):
        there = f"those registered are {', '.join(registered)}" if registered else "no broker is registered"
        raise Unavailable(
            f"broker {missing[0]} is not registered at {options.namesrv}, and {why} ({there}); start the broker, or "
            "name it in option retiredBrokers if it is out of service for good"
        )


def check_absent(
    options: ReadOptions, client: QueueReader, known: Collection[tuple[str, str]] = (), *, required: bool = True
) -> None:
    """Raise `Unavailable` if a broker that had messages to read has left; log it without failOnDataLoss.

    Brokers that options name, and `known` topics at brokers, are checked elsewhere. With `required` false only log it.
    """
    if options.assign:
        return
    for broker, topics in sorted(client.absent().items()):
        selected = options.subscribe or _matches(options, topics)
        missing = sorted(topic for topic in set(topics).intersection(selected) if (topic, broker) not in known)
        if not missing or broker in (*options.retired_brokers, *options.required_brokers):
            continue
        text = f"broker {broker} is not registered at {options.namesrv}, and had topic {missing[0]} when it left"
        if required and options.fail_on_data_loss:
            raise Unavailable(
                f"{text}; start the broker, name it in option retiredBrokers if it is out of service for good, or set "
                "failOnDataLoss to false to read the rest"
            )
        logger.warning("%s; reading the rest", text)


def beginnings(
    options: ReadOptions, client: QueueReader, bounds: Mapping[MessageQueue, Bounds], *, default: str
) -> Positions:
    """Return the first offset to read in each queue. `default`, earliest or latest, is for options without a start.

    If a queue has no message since a time, startingOffsetsByTimestampStrategy decides between the queue's end and an
    error.
    """
    if options.starting_ms is not None:
        times = dict.fromkeys(bounds, options.starting_ms)
        return _since(options, client, bounds, times, "startingTimestamp")
    if options.starting_times is not None:
        times, name = options.starting_times, "startingOffsetsByTimestamp"
        _check_named(options, client, times, bounds, name=name)
        return {queue: least for queue, (least, _) in bounds.items()} | _since(options, client, bounds, times, name)
    if options.starting_offsets == "group":
        stored = client.committed(bounds, options.group)
        given = {queue: bounds[queue][0] if offset is None else offset for queue, offset in stored.items()}
        return _checked(options, f"the offset that group {options.group} has stored", given, bounds)
    place = options.starting_offsets or default
    if isinstance(place, str):
        return {queue: _edge(place, each) for queue, each in bounds.items()}
    return _given(options, client, place, bounds, name="startingOffsets")


def queue_name(queue: MessageQueue) -> str:
    """Return the name of a queue for error texts."""
    return f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}"


def deletion(place: tuple[str, str], positions: Mapping[MessageQueue, int]) -> str:
    """Return the error text for a topic that was deleted at a broker after it was read to these positions."""
    topic, broker = place
    read = {queue.queue_id: offset for queue, offset in positions.items() if queue[:2] == place}
    reached = ", ".join(f"queue {queue_id} to {offset}" for queue_id, offset in sorted(read.items()))
    return f"topic {topic} at {broker} was deleted; it was read to these offsets, later messages are lost: {reached}"


def report_loss(options: ReadOptions, text: str) -> None:
    """Raise `DataLoss` with failOnDataLoss, else log it."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{text}; set failOnDataLoss to false to read the rest")
    logger.warning("%s; reading the rest", text)


def _assigned_bounds(
    options: ReadOptions, client: QueueReader, known: Collection[MessageQueue]
) -> dict[MessageQueue, Bounds]:
    new = [queue for queue in options.assign if queue not in known]
    check_registered(options, client, {queue.broker_name for queue in new}, "option assign names it")
    existing = _topic_bounds(options, client, sorted({queue.topic for queue in options.assign}), known)
    if missing := [queue for queue in new if queue not in existing]:
        raise UsageError(f"option assign names {queue_name(missing[0])}, which does not exist")
    return {queue: existing[queue] for queue in sorted(options.assign) if queue in existing}


def _topic_bounds(
    options: ReadOptions, client: QueueReader, topics: Iterable[str], known: Collection[MessageQueue]
) -> dict[MessageQueue, Bounds]:
    """Return the bounds of these topics; a deleted topic is left out if it is known or was matched by a pattern."""
    try:
        return client.bounds(topics)
    except TopicNotFound:
        pass  # at least one topic: query each by itself
    may_be_deleted = {queue.topic for queue in known}.union(topics if options.subscribe_pattern else ())
    found: dict[MessageQueue, Bounds] = {}
    for topic in topics:
        try:
            found |= client.bounds([topic])
        except TopicNotFound as error:
            if topic in may_be_deleted:
                continue
            _check_any_broker(options, client, error)
            raise
    return dict(sorted(found.items()))


def _check_any_broker(options: ReadOptions, client: QueueReader, error: TopicNotFound) -> None:
    """Raise `Unavailable` if the topic is missing because no broker is registered."""
    if not client.brokers():
        raise Unavailable(f"no broker is registered at {options.namesrv}: {error}") from error


def _matching(options: ReadOptions, client: QueueReader, known: Collection[MessageQueue]) -> list[str]:
    names = _matches(options, client.topics())
    if not names and not known:
        pattern = options.subscribe_pattern
        assert pattern is not None, "else `_matches` raises"
        error = TopicNotFound(f"no topic matches subscribePattern {pattern.pattern!r}")
        _check_any_broker(options, client, error)
        raise error
    return names


def _matches(options: ReadOptions, topics: Iterable[str]) -> list[str]:
    pattern = options.subscribe_pattern
    assert pattern is not None, "the options have one of the three"
    names = [name for name in topics if pattern.fullmatch(name) and not is_system_topic(name)]
    if not pattern.pattern.startswith("%"):  # retry and dead letter topics match only if the pattern names them
        names = [name for name in names if not name.startswith("%")]
    return names


def _endings(options: ReadOptions, client: QueueReader, bounds: Mapping[MessageQueue, Bounds]) -> Positions:
    if options.ending_ms is not None:
        return {queue: client.first_since(queue, options.ending_ms, bounds[queue]) for queue in bounds}
    if (times := options.ending_times) is not None:
        _check_named(options, client, times, bounds, name="endingOffsetsByTimestamp")
        found = {queue: client.first_since(queue, ms, bounds[queue]) for queue, ms in times.items()}
        return {queue: most for queue, (_, most) in bounds.items()} | found
    if isinstance(options.ending_offsets, str):
        return {queue: _edge(options.ending_offsets, each) for queue, each in bounds.items()}
    return _given(options, client, options.ending_offsets, bounds, name="endingOffsets")


def _since(
    options: ReadOptions,
    client: QueueReader,
    bounds: Mapping[MessageQueue, Bounds],
    times: Mapping[MessageQueue, int],
    name: str,
) -> Positions:
    """Return the offset of the first message since its time, for each queue that has a time."""
    found = {queue: client.first_since(queue, time_ms, bounds[queue]) for queue, time_ms in times.items()}
    none = [queue for queue, offset in found.items() if offset >= bounds[queue][1]]
    if none and options.starting_missing == "error":
        raise UsageError(
            f"{queue_name(none[0])} has no message stored at {times[none[0]]} ms ({name}) or later; set "
            "startingOffsetsByTimestampStrategy to latest to begin at its end"
        )
    return found


def _check_named(
    options: ReadOptions, client: QueueReader, table: OffsetTable, bounds: Mapping[MessageQueue, Bounds], *, name: str
) -> None:
    """Raise `UsageError` if the table names a queue that is not read, `Unavailable` if its broker is not registered."""
    for queue in table:
        if queue not in bounds:
            check_registered(options, client, [queue.broker_name], f"option {name} names it")
            raise UsageError(f"option {name} names {queue_name(queue)}, which is not read here")


def _given(
    options: ReadOptions, client: QueueReader, table: OffsetTable, bounds: Mapping[MessageQueue, Bounds], *, name: str
) -> Positions:
    """Return the offset of each queue by a table. Queues that it does not name are read completely."""
    _check_named(options, client, table, bounds, name=name)
    other = LATEST if name == "endingOffsets" else EARLIEST
    places = {queue: _meant(table.get(queue, other), each) for queue, each in bounds.items()}
    return _checked(options, name, places, bounds)


def _edge(place: str, bounds: Bounds) -> int:
    return bounds[0] if place == "earliest" else bounds[1]


def _meant(offset: int, bounds: Bounds) -> int:
    return bounds[0] if offset == EARLIEST else bounds[1] if offset == LATEST else offset


def _checked(
    options: ReadOptions, name: str, given: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, Bounds]
) -> Positions:
    """Return the offsets, moved into the bounds of their queues unless `DataLoss` is raised."""
    places = {}
    for queue, offset in given.items():
        least, most = bounds[queue]
        if not least <= offset <= most:
            report_loss(options, f"{name} of {queue_name(queue)} is {offset}; the queue holds {least} to {most}")
        places[queue] = min(max(offset, least), most)
    return places
