"""Headers of requests for offsets of consumers, bounds of queues, messages by key and log offset, and statistics."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header, field


class OffsetResponse(Header):
    """Response with a queue offset."""

    offset: int


class QueryConsumerOffset(Header):
    """Request for a group's committed offset in one queue.

    Without a committed offset, a broker returns 0 for a new queue, unless `zero_if_not_found` is False (RocketMQ 5;
    brokers of 4.9 ignore this field).
    """

    code = RequestCode.QUERY_CONSUMER_OFFSET
    reply_header = OffsetResponse
    consumer_group: str
    topic: str
    queue_id: int
    broker_name: str | None = field(name="bname", default=None)
    zero_if_not_found: bool | None = field(name="setZeroIfNotFound", default=None)


class UpdateConsumerOffset(Header):
    """Request: commit a group's offset in one queue."""

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    broker_name: str | None = field(name="bname", default=None)


class SearchOffset(Header):
    """Request for the queue offset of the message stored nearest to a time (ms)."""

    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    reply_header = OffsetResponse
    topic: str
    queue_id: int
    timestamp: int
    broker_name: str | None = field(name="bname", default=None)


class MaxOffset(Header):
    """Request for the end of a queue: one past the last queue offset."""

    code = RequestCode.GET_MAX_OFFSET
    reply_header = OffsetResponse
    topic: str
    queue_id: int
    broker_name: str | None = field(name="bname", default=None)


class MinOffset(Header):
    """Request for the queue offset of the first message in a queue."""

    code = RequestCode.GET_MIN_OFFSET
    reply_header = OffsetResponse
    topic: str
    queue_id: int
    broker_name: str | None = field(name="bname", default=None)


class EarliestStoreTimeResponse(Header):
    """Response with a store time in ms; -1 if the queue is empty."""

    timestamp: int


class EarliestStoreTime(Header):
    """Request for the store time of the first message in a queue."""

    code = RequestCode.GET_EARLIEST_MSG_STORETIME
    reply_header = EarliestStoreTimeResponse
    topic: str
    queue_id: int
    broker_name: str | None = field(name="bname", default=None)


class AllConsumerOffsets(Header):
    """Request for the committed offsets of all groups."""

    code = RequestCode.GET_ALL_CONSUMER_OFFSET
    reply_body = bodies.ConsumerOffsetTable


class AllDelayOffsets(Header):
    """Request for the delivered offset of each delay level."""

    code = RequestCode.GET_ALL_DELAY_OFFSET
    reply_body = bodies.DelayOffsetTable


class ResetOffset(Header):
    """Request: reset the members of a group to a store time (ms; -1: the end)."""

    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    reply_body = bodies.ResetOffsets
    topic: str
    group: str
    timestamp: int
    force: bool = field(name="isForce", default=False)


class ResetClientOffset(Header):
    """Request from a broker to a member: reset the queues to the offsets in the body."""

    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    request_body = bodies.ResetOffsets
    topic: str
    group: str
    timestamp: int
    force: bool = field(name="isForce", default=False)


class ConsumerStatusOfClient(Header):
    """Request from a broker to a member for its offsets."""

    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    reply_body = bodies.ConsumerStatus
    topic: str
    group: str


class ConsumerStatusOfGroup(Header):
    """Request to a broker for the offsets of a group's members; an empty client address means all members."""

    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    reply_body = bodies.ConsumerStatus
    topic: str
    group: str
    client_address: str | None = field(name="clientAddr", default=None)


class CorrectionOffsets(Header):
    """Request for the lowest offset of each queue among several groups.

    The response has 2^63 - 1 for a queue where the offset of `compare_group` is lower.
    """

    code = RequestCode.QUERY_CORRECTION_OFFSET
    reply_body = bodies.CorrectionOffsetTable
    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffset(Header):
    """Request: copy one group's offsets to another group."""

    code = RequestCode.CLONE_GROUP_OFFSET
    source_group: str = field(name="srcGroup")
    destination_group: str = field(name="destGroup")
    topic: str | None = None
    offline: bool = False


class ConsumeTimeSpan(Header):
    """Request for the store times of the first, the next consumed and the last message of each queue."""

    code = RequestCode.QUERY_CONSUME_TIME_SPAN
    reply_body = bodies.ConsumeTimeSpans
    topic: str
    group: str


class QueryMessageResponse(Header):
    """Response to a query by key: the end of the key index. The body has the records."""

    index_last_ms: int = field(name="indexLastUpdateTimestamp")
    index_last_log_offset: int = field(name="indexLastUpdatePhyoffset")


class QueryMessage(Header):
    """Request for messages of a topic with a key, stored between two times (ms)."""

    code = RequestCode.QUERY_MESSAGE
    reply_header = QueryMessageResponse
    topic: str
    key: str
    max_count: int = field(name="maxNum")
    begin_ms: int = field(name="beginTimestamp")
    end_ms: int = field(name="endTimestamp")
    by_unique_key: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)


class ViewMessage(Header):
    """Request for the record at a log offset."""

    code = RequestCode.VIEW_MESSAGE_BY_ID
    offset: int


class QueueEntries(Header):
    """Request for entries of a consume queue."""

    code = RequestCode.QUERY_CONSUME_QUEUE
    reply_body = bodies.QueueEntriesBody
    topic: str
    queue_id: int
    index: int
    count: int
    consumer_group: str | None = None


class TopicStatistics(Header):
    """Request for the bounds and last store time of a topic's queues."""

    code = RequestCode.GET_TOPIC_STATS_INFO
    reply_body = bodies.TopicStats
    topic: str


class ConsumeStatistics(Header):
    """Request for a group's offsets and the ends of the queues."""

    code = RequestCode.GET_CONSUME_STATS
    reply_body = bodies.ConsumeStats
    consumer_group: str
    topic: str | None = None


class BrokerConsumeStatistics(Header):
    """Request for every group's offsets and the ends of the queues."""

    code = RequestCode.GET_BROKER_CONSUME_STATS
    reply_body = bodies.ConsumeStatsList
    order: bool = field(name="isOrder", default=False)


class BrokerFigures(Header):
    """Request for the totals of each topic and group, which the broker computes."""

    code = RequestCode.BROKER_FIGURES
    reply_body = bodies.FiguresTable


class BrokerStatistics(Header):
    """Request for one of a broker's counters by minute, hour and day."""

    code = RequestCode.VIEW_BROKER_STATS_DATA
    reply_body = bodies.BrokerStats
    stats_name: str
    stats_key: str


class TopicConsumers(Header):
    """Request for the groups that consume a topic."""

    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    reply_body = bodies.GroupList
    topic: str
