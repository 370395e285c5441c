"""JSON bodies with progress of groups, bounds of queues, and counters.

Source: RocketMQ 4.9.8, ConsumeStats, BrokerStatsData.
"""

from __future__ import annotations

from msgspec import field

from pyromq.message import MessageQueue
from pyromq.remoting.bodies.body import Body
from pyromq.remoting.bodies.client_bodies import Subscription
from pyromq.remoting.bodies.queue_bodies import WireQueue


class ConsumedQueue(Body):
    """A group's progress in one queue.

    `next_offset` (from RocketMQ 5) is the first offset never handed out, and `in_flight` the number of invisible
    messages; None for a queue that the group does not pop.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    last_ms: int = field(name="lastTimestamp", default=0)
    next_offset: int | None = field(name="pullOffset", default=None)
    in_flight: int | None = None


class ConsumeStats(Body):
    """Body of a response: a group's progress in each queue."""

    consume_tps: float = 0.0
    queues: dict[MessageQueue, ConsumedQueue] = field(name="offsetTable", default_factory=dict)


class ConsumeStatsList(Body):
    """Body of a response: the progress of every group of a broker."""

    broker_address: str = field(name="brokerAddr", default="")
    groups: list[dict[str, list[ConsumeStats]]] = field(name="consumeStatsList", default_factory=list)
    total_lag: int = field(name="totalDiff", default=0)


class TopicOffset(Body):
    """First and end offset of a queue, and the store time of its last message."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_ms: int = field(name="lastUpdateTimestamp", default=0)


class TopicStats(Body):
    """Body of a response: bounds of the queues of a topic."""

    queues: dict[MessageQueue, TopicOffset] = field(name="offsetTable", default_factory=dict)


class QueueTimeSpan(Body):
    """Store times of messages in one queue, in ms and as string `yyyy-MM-dd#HH:mm:ss:SSS`."""

    queue: WireQueue = field(name="messageQueue")
    min_ms: int = field(name="minTimeStamp", default=0)
    max_ms: int = field(name="maxTimeStamp", default=0)
    consumed_ms: int = field(name="consumeTimeStamp", default=0)
    min_text: str = field(name="minTimeStampStr", default="")
    max_text: str = field(name="maxTimeStampStr", default="")
    consumed_text: str = field(name="consumeTimeStampStr", default="")
    delay_ms: int = field(name="delayTime", default=0)


class ConsumeTimeSpans(Body):
    """Body of a response: store times of messages in the queues of a topic."""

    spans: list[QueueTimeSpan] = field(name="consumeTimeSpanSet", default_factory=list)


class QueueEntryBody(Body):
    """One entry of a consume queue."""

    log_offset: int = field(name="physicOffset", default=0)
    size: int = field(name="physicSize", default=0)
    tags_code: int = 0
    extension: str | None = field(name="extendDataJson", default=None)
    bit_map: str | None = None
    accepted: bool = field(name="eval", default=False)
    text: str | None = field(name="msg", default=None)


class QueueEntriesBody(Body):
    """Body of a response: entries of a consume queue."""

    subscription: Subscription | None = field(name="subscriptionData", default=None)
    filter_text: str | None = field(name="filterData", default=None)
    entries: list[QueueEntryBody] = field(name="queueData", default_factory=list)
    max_index: int = field(name="maxQueueIndex", default=0)
    min_index: int = field(name="minQueueIndex", default=0)


class StatsItem(Body):
    """A broker's counter over one period: sum, rate per second, and average value."""

    sum: int = 0
    tps: float = 0.0
    average: float = field(name="avgpt", default=0.0)


class BrokerStats(Body):
    """Body of a response: one of a broker's counters over a minute, an hour and a day."""

    minute: StatsItem = field(name="statsMinute", default_factory=StatsItem)
    hour: StatsItem = field(name="statsHour", default_factory=StatsItem)
    day: StatsItem = field(name="statsDay", default_factory=StatsItem)


class TopicFigures(Body):
    """A topic at one broker: its settings and the totals of its queues. `sent` counts all messages ever stored."""

    name: str
    read_queues: int = 0
    write_queues: int = 0
    permission: int = 0
    order: bool = False
    messages: int = 0
    sent: int = 0
    last_store_ms: int = 0


class ConsumedTopicFigures(Body):
    """A group's progress in one topic.

    `delay_ms` is the age of the oldest message that the group has not consumed.
    """

    topic: str
    consumed: int = 0
    lag: int = 0
    delay_ms: int = 0
    in_flight: int = 0


class GroupFigures(Body):
    """A group at one broker: its members, and its progress in each topic."""

    name: str
    members: list[str] = field(default_factory=list)
    differs: bool = False
    enabled: bool = True
    topics: list[ConsumedTopicFigures] = field(default_factory=list)


class FiguresTable(Body):
    """Body of a response: every topic and every group of a broker. Only in pyromq."""

    topics: list[TopicFigures] = field(default_factory=list)
    groups: list[GroupFigures] = field(default_factory=list)
