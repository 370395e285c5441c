"""The declared bodies: texts as upstream writes them, defaults, and the compressed registration."""

import struct
import time
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import ProtocolError
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import (
    AssignmentQuery,
    Assignments,
    BatchAck,
    BatchAcks,
    BrokerAddresses,
    BrokerRegistration,
    BrokerStats,
    ClusterTable,
    ConsumeDirectlyResult,
    ConsumedQueue,
    ConsumerConnection,
    ConsumerEntry,
    ConsumerIds,
    ConsumerOffsetTable,
    ConsumerRunning,
    ConsumerStatus,
    ConsumeStats,
    CorrectionOffsetTable,
    DataVersion,
    DelayOffsetTable,
    GroupConfig,
    HeartbeatBody,
    LockedQueues,
    MessageRequestMode,
    OffsetMoved,
    ProducerTable,
    PulledQueue,
    QueueAssignment,
    QueueOffset,
    QueuesAtBroker,
    QueueTimeSpan,
    ResetOffsets,
    TopicConfig,
    TopicConfigTable,
    TopicOffset,
    TopicRoute,
    TopicStats,
    WireQueue,
    compress_registration,
    decode_body,
    decompress_registration,
    encode_body,
    registration_bodies,
)
from pyromq.remoting.bodies.body import Body
from pyromq.remoting.bodies.registration_bodies import MAX_REGISTRATION_BYTES, read_plain
from pyromq.slow_work import run_blocking

QUEUE = MessageQueue("t", "b", 0)
MQ = '{"brokerName":"b","queueId":0,"topic":"t"}'

UPSTREAM = [
    (
        TopicRoute(
            brokers=[BrokerAddresses(broker_name="b", cluster="c", addresses={0: "h:1", 1: "h:2"})],
            order_conf="b:4",
            queues=[QueuesAtBroker(broker_name="b", permission=6, read_queues=4, write_queues=4)],
        ),
        '{"brokerDatas":[{"brokerAddrs":{"0":"h:1","1":"h:2"},"brokerName":"b","cluster":"c"}],"filterServerTable":{},'
        '"orderTopicConf":"b:4","queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        '"writeQueueNums":4}]}',
    ),
    (
        TopicConfig(name="t"),
        '{"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"t","topicSysFlag":0,'
        '"writeQueueNums":16}',
    ),
    (
        GroupConfig(name="g"),
        '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"g",'
        '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}',
    ),
    (DataVersion(counter=1, timestamp=2), '{"counter":1,"timestamp":2}'),
    (DataVersion(counter=1, timestamp=2, state_version=3), '{"counter":1,"stateVersion":3,"timestamp":2}'),
    (LockedQueues(queues=[WireQueue.of(QUEUE)]), f'{{"lockOKMQSet":[{MQ}]}}'),
    (ConsumerIds(client_ids=["1@2"]), '{"consumerIdList":["1@2"]}'),
    (ResetOffsets(offsets={QUEUE: 7}), f'{{"offsetTable":{{{MQ}:7}}}}'),
    (
        ResetOffsets(offsets=[QueueOffset(topic="t", broker_name="b", queue_id=0, offset=7)]),
        '{"offsetTable":[{"brokerName":"b","offset":7,"queueId":0,"topic":"t"}]}',
    ),
    (ConsumerStatus(queues={QUEUE: 7}), f'{{"consumerTable":{{}},"messageQueueTable":{{{MQ}:7}}}}'),
    (
        ConsumeStats(queues={QUEUE: ConsumedQueue(broker_offset=3, consumer_offset=2, last_ms=1)}),
        f'{{"consumeTps":0.0,"offsetTable":{{{MQ}:{{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":1}}}}}}',
    ),
    (
        TopicStats(queues={QUEUE: TopicOffset(min_offset=1, max_offset=2, last_update_ms=3)}),
        f'{{"offsetTable":{{{MQ}:{{"lastUpdateTimestamp":3,"maxOffset":2,"minOffset":1}}}}}}',
    ),
    (
        OffsetMoved(group="g", queue=WireQueue.of(QUEUE), asked_offset=9, new_offset=5),
        f'{{"consumerGroup":"g","messageQueue":{MQ},"offsetNew":5,"offsetRequest":9}}',
    ),
    (
        QueueTimeSpan(queue=WireQueue.of(QUEUE)),
        f'{{"consumeTimeStamp":0,"consumeTimeStampStr":"","delayTime":0,"maxTimeStamp":0,"maxTimeStampStr":"",'
        f'"messageQueue":{MQ},"minTimeStamp":0,"minTimeStampStr":""}}',
    ),
    (
        ConsumerRunning(queues={QUEUE: PulledQueue()}),
        f'{{"mqTable":{{{MQ}:{{"cachedMsgCount":0,"cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,'
        f'"cachedMsgSizeInMiB":0,"commitOffset":0,"droped":false,"lastConsumeTimestamp":0,"lastLockTimestamp":0,'
        f'"lastPullTimestamp":0,"locked":false,"transactionMsgCount":0,"transactionMsgMaxOffset":0,'
        f'"transactionMsgMinOffset":0,"tryUnlockTimes":0}}}},"properties":{{}},"statusTable":{{}},'
        f'"subscriptionSet":[]}}',
    ),
    (
        ConsumeDirectlyResult(result="CR_SUCCESS", spent_ms=4),
        '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":4}',
    ),
    (
        BrokerStats(),
        '{"statsDay":{"avgpt":0.0,"sum":0,"tps":0.0},"statsHour":{"avgpt":0.0,"sum":0,"tps":0.0},'
        '"statsMinute":{"avgpt":0.0,"sum":0,"tps":0.0}}',
    ),
    (
        ConsumerConnection(),
        '{"connectionSet":[],"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY",'
        '"messageModel":"CLUSTERING","subscriptionTable":{}}',
    ),
    (
        BatchAcks(
            broker_name="b",
            acks=[
                BatchAck(
                    *("g", "t", "0"), start=3, queue_id=1, revive_queue=0, pop_ms=5, invisible_ms=6, bits="AQIAAAAAAABA"
                )
            ],
        ),
        '{"acks":[{"b":"AQIAAAAAAABA","c":"g","it":6,"pt":5,"q":1,"r":"0","rq":0,"so":3,"t":"t"}],"brokerName":"b"}',
    ),
    (
        AssignmentQuery(topic="t", group="g", client_id="c", strategy="AVG"),
        '{"clientId":"c","consumerGroup":"g","messageModel":"CLUSTERING","strategyName":"AVG","topic":"t"}',
    ),
    (
        Assignments(queues=[QueueAssignment(queue=WireQueue(topic="t", broker_name="b", queue_id=-1), mode="POP")]),
        '{"messageQueueAssignments":[{"messageQueue":{"brokerName":"b","queueId":-1,"topic":"t"},"mode":"POP"}]}',
    ),
    (
        MessageRequestMode(topic="t", group="g", mode="POP", share_queues=2),
        '{"consumerGroup":"g","mode":"POP","popShareQueueNum":2,"topic":"t"}',
    ),
]


@pytest.mark.parametrize(("body", "text"), UPSTREAM)
def test_bodies_have_upstreams_text(body, text):
    assert encode_body(body).decode() == text
    assert decode_body(type(body), text.encode()) == body


@pytest.mark.parametrize(
    ("declared", "text", "body"),
    [
        (
            ClusterTable,
            '{"brokerAddrTable":{"b":{"brokerAddrs":{0:"h:1"},"brokerName":"b","cluster":"c"}},'
            '"clusterAddrTable":{"c":["b"]}}',
            ClusterTable(
                brokers={"b": BrokerAddresses(broker_name="b", cluster="c", addresses={0: "h:1"})},
                clusters={"c": ["b"]},
            ),
        ),
        (ConsumerOffsetTable, '{"offsetTable":{"t@g":{0:7,1:8}}}', ConsumerOffsetTable(offsets={"t@g": {0: 7, 1: 8}})),
        (DelayOffsetTable, '{"offsetTable":{1:7}}', DelayOffsetTable(offsets={1: 7})),
        (CorrectionOffsetTable, '{"correctionOffsets":{0:7}}', CorrectionOffsetTable(offsets={0: 7})),
    ],
)
def test_number_keys_may_come_without_quotes(declared, text, body):
    assert decode_body(declared, text.encode()) == body
    assert decode_body(declared, encode_body(body)) == body


def test_additions_of_rocketmq_5_are_read_over():
    text = '{"liteTopicExpiration":-1,"topicName":"t"}'
    assert decode_body(TopicConfig, text.encode()) == TopicConfig(name="t")
    text = '{"clientID":"c","heartbeatFingerprint":7,"withoutSub":true,"consumerDataSet":[]}'
    assert decode_body(HeartbeatBody, text.encode()) == HeartbeatBody(client_id="c")


def test_the_attributes_of_a_topic_are_read_and_written_as_by_rocketmq_5_and_not_at_all_without_any():
    text = b'{"attributes":{"message.type":"FIFO"},"order":false,"perm":6,"readQueueNums":16,"topicFilterType":'
    text += b'"SINGLE_TAG","topicName":"t","topicSysFlag":0,"writeQueueNums":16}'
    assert encode_body(decode_body(TopicConfig, text)) == text
    assert b"attributes" not in encode_body(TopicConfig(name="t"))


def test_subscription_without_expression_type_is_by_tag():
    text = (
        '{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"subString":"*","topic":"t"}]}]}'
    )
    (consumer,) = decode_body(HeartbeatBody, text.encode()).consumers
    assert isinstance(consumer, ConsumerEntry)
    assert consumer.subscriptions[0].expression_type == "TAG"


def test_unknown_language_is_kept_as_it_came():
    text = '{"data":{"g":[{"clientId":"c","language":"COBOL","remoteIP":"/h:1","version":409}]}}'
    assert decode_body(ProducerTable, text.encode()).groups["g"][0].language == "COBOL"


# A worker may have imported other packages' bodies before, too.
BODIES = sorted(
    (declared for declared in Body.__subclasses__() if declared.__module__.startswith("pyromq.remoting")),
    key=lambda declared: declared.__name__,
)


@pytest.mark.parametrize("declared", BODIES, ids=lambda declared: declared.__name__)
def test_wire_names_of_a_body_differ(declared):
    names = [f.encode_name for f in msgspec.structs.fields(declared)]
    assert len(names) == len(set(names))


REGISTRATION = BrokerRegistration(
    filter_servers=["h:1"],
    topics=TopicConfigTable(
        data_version=DataVersion(counter=3, timestamp=4),
        topics={"t": TopicConfig(name="t", read_queues=4, write_queues=8, permission=4), "u": TopicConfig(name="u")},
    ),
)


def sized(text: bytes) -> bytes:
    return struct.pack(">i", len(text)) + text


def test_compressed_registration_has_upstreams_layout():
    assert zlib.decompress(compress_registration(REGISTRATION)) == (
        sized(b'{"counter":3,"timestamp":4}')
        + struct.pack(">i", 2)
        + sized(b"t 4 8 4 SINGLE_TAG")
        + sized(b"u 16 16 6 SINGLE_TAG")
        + sized(b'["h:1"]')
    )


def test_compressed_registration_is_read_back():
    assert decompress_registration(compress_registration(REGISTRATION)) == REGISTRATION


def test_topic_attributes_of_rocketmq_5_are_read_over():
    parts = [sized(b"{}"), struct.pack(">i", 1), sized(b't 4 8 6 SINGLE_TAG {"+a":"b c"}'), sized(b"[]")]
    topics = decompress_registration(zlib.compress(b"".join(parts))).topics.topics
    assert topics == {"t": TopicConfig(name="t", read_queues=4, write_queues=8)}


def test_registration_that_decompresses_to_gigabytes_is_cut_off():
    servers = struct.pack(">i", MAX_REGISTRATION_BYTES) + b"[]" + b" " * (MAX_REGISTRATION_BYTES - 2)
    bomb = zlib.compress(sized(b"{}") + struct.pack(">i", 0) + servers, 1)
    with pytest.raises(ProtocolError, match="16777216 bytes"):
        decompress_registration(bomb)


@given(st.data())
def test_changed_registration_gives_a_value_or_a_protocol_error(data):
    plain = bytearray(zlib.decompress(compress_registration(REGISTRATION)))
    plain[data.draw(st.integers(0, len(plain) - 1))] ^= data.draw(st.integers(1, 255))
    for raw in (zlib.compress(plain), bytes(plain)):
        try:
            decompress_registration(raw)
        except ProtocolError:
            pass


@pytest.fixture
def always_long(monkeypatch):
    """Every registration is read topic by topic, but for a short rest."""
    monkeypatch.setattr(registration_bodies, "SHORT_BYTES", 400)


LONG = BrokerRegistration(
    filter_servers=["h:1"],
    topics=TopicConfigTable(
        data_version=DataVersion(counter=3, timestamp=4),
        topics={name: TopicConfig(name=name, read_queues=3) for name in ("t", "%RETRY%g", '"{}', "last")},
    ),
)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_long_registration_reads_as_a_short_one(always_long, indent):
    raw = encode_body(LONG)
    if indent is not None:
        raw = msgspec.json.format(raw, indent=indent)
    assert run_blocking(read_plain(raw)) == LONG


def test_a_long_registration_of_rocketmq_5_is_read(always_long):
    raw = encode_body(LONG).replace(b'"order":false', b'"attributes":{"+cleanup.policy":"DELETE"},"order":false')
    read = run_blocking(read_plain(raw)).topics.topics
    assert list(read) == list(LONG.topics.topics)
    assert all(topic.attributes == {"+cleanup.policy": "DELETE"} for topic in read.values())


@given(st.data())
def test_a_changed_long_registration_gives_a_value_or_a_protocol_error(data):
    raw = bytearray(encode_body(LONG) + b" " * 1000)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    before, registration_bodies.SHORT_BYTES = registration_bodies.SHORT_BYTES, 400
    try:
        run_blocking(read_plain(bytes(raw)))
    except ProtocolError:
        pass
    finally:
        registration_bodies.SHORT_BYTES = before


@pytest.mark.parametrize("filling", [b" ", b"a", b'"', b"{", b'"t":{}', b'"t":{"a":"b', b"\\"])
def test_what_is_no_registration_is_refused_at_once(filling):
    began = time.process_time()
    with pytest.raises(ProtocolError):
        run_blocking(read_plain(b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + filling * 300_000 + b"}}}"))
    assert time.process_time() - began < 0.5
