"""The topic table: built-in topics, automatic creation, versions, the file."""

from dataclasses import replace

import pytest
from tests.broker.peers import a_peer
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.limits import BrokerLimits
from pyromq.broker.topics import ChangeCause, Topics, check_changeable, describe
from pyromq.errors import BrokerError, IllegalName, LimitReached, TopicNotFound
from pyromq.remoting.bodies import TopicConfig
from pyromq.store.json_file import JsonFile
from pyromq.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def topics(config, clock, tmp_path):
    return Topics(config, JsonFile(tmp_path / "topics.json"), clock)


@pytest.fixture
def limited(topics, config, tmp_path, clock):
    """Makes a table for so many topics more than a new one has, and for topics of so many groups."""

    def make(more, **limits):
        config.limits = BrokerLimits(topics=len(topics) + more, **limits)
        return Topics(config, JsonFile(tmp_path / "limited.json"), clock)

    return make


def send_to(topics, name, *, default_topic="TBW102", asked_queues=4, peer=None):
    peer = a_peer() if peer is None else peer
    return topics.for_send(name, default_topic=default_topic, asked_queues=asked_queues, peer=peer)


def test_built_in_topics_are_those_of_rocketmq(topics):
    assert {topic.name: (topic.write_queues, topic.permission) for topic in topics} == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
    }


def test_a_send_creates_its_topic_after_the_pattern_and_tells_it(config, clock, tmp_path):
    told = []
    file = JsonFile(tmp_path / "topics.json")
    topics = Topics(config, file, clock, on_change=lambda topic, change: told.append((topic.name, change)))
    topic = send_to(topics, "orders")
    assert (topic.read_queues, topic.write_queues, topic.permission) == (4, 4, 6)
    assert topics.find("orders") is topic
    assert send_to(topics, "orders") is topic
    assert told == [("orders", ChangeCause.AUTOMATIC)]


@pytest.mark.parametrize(("asked", "queues"), [(100, 8), (0, 1), (-3, 1)])
def test_the_sender_gets_no_more_queues_than_the_pattern_has_and_one_at_least(topics, asked, queues):
    assert send_to(topics, "orders", asked_queues=asked).write_queues == queues


def test_without_a_pattern_to_inherit_from_the_topic_does_not_exist(topics):
    for pattern in ("nothing", "SELF_TEST_TOPIC"):
        with pytest.raises(TopicNotFound, match=r"topic\[orders\] not exist, apply first please!\nSee http"):
            send_to(topics, "orders", default_topic=pattern)


def test_automatic_creation_can_be_switched_off_while_running(topics, config):
    config.auto_create_topic = False
    with pytest.raises(TopicNotFound):
        send_to(topics, "orders")


def test_changes_survive_a_restart(topics, config, clock, tmp_path):
    saved = topics.put(TopicConfig(name="orders", read_queues=3, write_queues=2, permission=4, order=True))
    saved.result(PATIENCE_SECONDS)
    again = Topics(config, JsonFile(tmp_path / "topics.json"), clock)
    again.load()
    assert again.find("orders") == topics.find("orders")
    assert again.version == topics.version


async def test_each_change_is_a_new_version(topics, clock):
    before = topics.version
    await clock.advance(1)
    topics.put(TopicConfig(name="orders"))
    assert (topics.version.counter, topics.version.timestamp) == (before.counter + 1, clock.now_ms())
    assert not topics.delete("nothing")
    assert topics.version.counter == before.counter + 1
    assert topics.delete("orders")
    assert topics.version.counter == before.counter + 2


def test_ordered_topics_are_those_the_name_server_tells(topics):
    topics.put(TopicConfig(name="a"))
    topics.put(TopicConfig(name="b", order=True))
    version = topics.version
    topics.order(frozenset({"a", "unknown"}))
    assert topics.find("a").order
    assert not topics.find("b").order
    topics.order(frozenset({"a"}))
    assert topics.version.counter == version.counter + 1


def test_files_of_java_are_read(config, clock, tmp_path):
    text = b'{\n\t"dataVersion":{\n\t\t"counter":7,\n\t\t"timestamp":5\n\t},\n\t"topicConfigTable":{\n\t\t"Golden":{\n'
    text += b'\t\t\t"order":true,\n\t\t\t"perm":4,\n\t\t\t"readQueueNums":2,\n\t\t\t"topicFilterType":"MULTI_TAG",\n'
    text += b'\t\t\t"topicName":"Golden",\n\t\t\t"topicSysFlag":1,\n\t\t\t"writeQueueNums":3\n\t\t}\n\t}\n}'
    (tmp_path / "java.json").write_bytes(text)
    topics = Topics(config, JsonFile(tmp_path / "java.json"), clock)
    topics.load()
    golden = topics.find("Golden")
    assert (golden.read_queues, golden.write_queues, golden.permission, golden.order) == (2, 3, 4, True)
    assert golden.filter_type == "MULTI_TAG"
    assert topics.version.counter == 7


def test_reserved_and_illegal_names_are_not_for_administrators(topics, config):
    check_changeable(topics, "orders")
    for name in ("SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a", "rmq_sys_x", "RMQ_SYS_TRANS_HALF_TOPIC"):
        with pytest.raises(BrokerError, match=rf"The topic\[{name}\] is conflict with system topic."):
            check_changeable(topics, name)
    with pytest.raises(IllegalName):
        check_changeable(topics, "no blanks")


def test_a_topic_is_described_as_java_prints_it():
    assert describe(TopicConfig(name="RecB", read_queues=4, write_queues=4)) == (
        "TopicConfig [topicName=RecB, readQueueNums=4, writeQueueNums=4, perm=RW-, topicFilterType=SINGLE_TAG, "
        "topicSysFlag=0, order=false]"
    )


def test_the_trace_topic_and_closed_cluster_topics_are_options(config, clock, tmp_path):
    closed = replace(config, trace_topic=True, cluster_topic=False, broker_topic=False, auto_create_topic=False)
    topics = Topics(closed, JsonFile(tmp_path / "topics.json"), clock)
    assert topics.find("RMQ_SYS_TRACE_TOPIC").write_queues == 1
    assert topics.find("DefaultCluster").permission == 1
    assert topics.find("broker-a").permission == 1
    assert topics.find("TBW102") is None


def test_there_are_as_many_topics_as_the_broker_keeps_and_more_for_groups_and_itself(limited):
    topics = limited(1, groups=1)
    topics.for_group_retry("%RETRY%g", 1)
    topics.for_group_retry("%DLQ%g", 1)
    topics.put(TopicConfig(name="%DLQ%g", read_queues=2))
    send_to(topics, "last")
    with pytest.raises(LimitReached, match=r"topic\[more\] is not created.* has 9 .*raise maxTopics \(now 9\)"):
        send_to(topics, "more")
    with pytest.raises(LimitReached):
        topics.put(TopicConfig(name="more"))
    topics.put(TopicConfig(name="last", read_queues=9))
    with pytest.raises(LimitReached, match=r"%RETRY%h\] is not created.* has 2 .*raise maxGroups \(now 1\)"):
        topics.for_group_retry("%RETRY%h", 1)
    topics.delete("%RETRY%g")
    topics.for_group_retry("%RETRY%h", 1)
    topics.for_group_retry("rmq_sys_half_runs", 1)


def test_a_connection_has_its_share_of_topics_created(limited):
    topics = limited(100)
    greedy, other = a_peer(), a_peer()
    for number in range(10):
        send_to(topics, f"greedy-{number}", peer=greedy)
    share = r"this connection created 10 topics, .*; create fewer, or raise maxTopics \(now 108\)"
    with pytest.raises(LimitReached, match=share):
        send_to(topics, "greedy-10", peer=greedy)
    assert topics.find("greedy-10") is None
    assert send_to(topics, "greedy-1", peer=greedy) is topics.find("greedy-1")
    topics.put(TopicConfig(name="greedy-10"))  # an administrator's
    for number in range(8):
        send_to(topics, f"other-{number}", peer=other)
    with pytest.raises(LimitReached):
        send_to(topics, "other-8", peer=other)


def test_topics_of_groups_have_a_share_of_their_own_room(limited):
    topics = limited(1, groups=50)
    greedy = a_peer()
    for number in range(10):
        topics.for_group_retry(f"%RETRY%greedy-{number}", 1, sender=greedy)
    share = r"this connection created 10 topics of groups, .*; create fewer, or raise maxGroups \(now 50\)"
    with pytest.raises(LimitReached, match=share):
        topics.for_group_retry("%DLQ%more", 1, sender=greedy)
    topics.for_group_retry("%DLQ%more", 1)  # nobody's share: there is a group of that name
    send_to(topics, "of-topics", peer=greedy)


def test_everybody_may_have_one_topic_created_and_what_ended_is_forgotten(limited):
    topics = limited(5)
    for number in range(5):
        peer = a_peer()
        assert send_to(topics, f"t-{number}", peer=peer) is not None
        with pytest.raises(LimitReached):
            send_to(topics, "more", peer=peer)
        peer.close("the test ends")
    assert len(topics._creations) == 0


def test_what_is_refused_for_another_reason_counts_against_nobody(limited):
    topics = limited(20)
    peer = a_peer()
    for number in range(20):
        with pytest.raises(TopicNotFound):
            send_to(topics, f"t-{number}", default_topic="none", peer=peer)
    send_to(topics, "one", peer=peer)
    send_to(topics, "two", peer=peer)
