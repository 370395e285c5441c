"""Finding messages, and statistics."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class QueryMessageResponse(Header):
    """The end of the key index; the body holds the records."""

    index_last_ms: int = field(name="indexLastUpdateTimestamp")
    index_last_log_offset: int = field(name="indexLastUpdatePhyoffset")


class QueryMessage(Header):
    """Messages of a topic with a key, stored between two times (ms)."""

    code = RequestCode.QUERY_MESSAGE
    reply_header = QueryMessageResponse
    topic: str
    key: str
    max_count: int = field(name="maxNum")
    begin_ms: int = field(name="beginTimestamp")
    end_ms: int = field(name="endTimestamp")
    by_unique_key: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)


class ViewMessage(Header):
    """The record at a log offset."""

    code = RequestCode.VIEW_MESSAGE_BY_ID
    offset: int


class QueueEntries(Header):
    """Entries of a consume queue."""

    code = RequestCode.QUERY_CONSUME_QUEUE
    reply_body = bodies.QueueEntriesBody
    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


class TopicStatistics(Header):
    """Bounds and last store time of a topic's queues."""

    code = RequestCode.GET_TOPIC_STATS_INFO
    reply_body = bodies.TopicStats
    topic: str


class ConsumeStatistics(Header):
    """A group's offsets and the queues' ends."""

    code = RequestCode.GET_CONSUME_STATS
    reply_body = bodies.ConsumeStats
    consumer_group: str
    topic: str | None = None


class BrokerConsumeStatistics(Header):
    """Every group's offsets and the queues' ends."""

    code = RequestCode.GET_BROKER_CONSUME_STATS
    reply_body = bodies.ConsumeStatsList
    order: bool = field(name="isOrder", default=False)


class BrokerFigures(Header):
    """The totals of each topic and group, computed by the broker."""

    code = RequestCode.BROKER_FIGURES
    reply_body = bodies.FiguresTable


class BrokerStatistics(Header):
    """One counter by minute, hour and day."""

    code = RequestCode.VIEW_BROKER_STATS_DATA
    reply_body = bodies.BrokerStats
    stats_name: str
    stats_key: str


class TopicConsumers(Header):
    """The groups that consume a topic."""

    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    reply_body = bodies.GroupList
    topic: str
