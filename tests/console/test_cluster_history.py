"""Rates and lag over the last hour and day, from samples of counters."""

import pytest

pytest.importorskip("starlette")

from pyromq.console.cluster.cluster_history import ClusterHistory
from pyromq.console.cluster.cluster_snapshot import BrokerView, ClusterSnapshot, ConsumedTopic, GroupView, TopicView
from pyromq.remoting.bodies import FiguresTable

BEGIN = 1_795_521_600_000
SAMPLE = 10


def snapshot(number, *, error=None):
    """The state after so many samples: 5 messages a second come in, 3 a second go out."""
    topics = {
        "orders": TopicView("orders", "normal", sent=50 * number),
        "%RETRY%billing": TopicView("%RETRY%billing", "retry", sent=9999 * number),
    }
    groups = {
        "billing": GroupView("billing", False, topics={"orders": ConsumedTopic(30 * number, 20 * number, 0)}),
        "CID_RMQ_SYS_TRANS": GroupView("CID_RMQ_SYS_TRANS", True, topics={"x": ConsumedTopic(777 * number, 7777, 0)}),
    }
    broker = BrokerView("a", "c", {}, figures=FiguresTable(), sent=50 * number, consumed=30 * number, error=error)
    return ClusterSnapshot(BEGIN + number * SAMPLE * 1000, {"a": broker}, topics, groups)


def history_of(count):
    history = ClusterHistory(sample_seconds=SAMPLE)
    for number in range(count):
        history.add(snapshot(number))
    return history


def test_one_definition_of_in_and_out_holds_for_topics_brokers_and_the_cluster():
    history = history_of(20)
    assert history.rate("sent") == history.rate("sent", "orders") == history.rate("broker in", "a") == 5
    assert history.rate("consumed") == history.rate("consumed", "billing") == history.rate("broker out", "a") == 3
    assert history.values("lag")[-1].value == 20 * 19  # without the groups of the system
    assert history.rate("sent", "unknown") is None and history.values("lag", "unknown") == []


def test_the_first_messages_of_a_new_topic_count_for_the_topic_as_for_the_cluster():
    history = ClusterHistory(sample_seconds=SAMPLE)
    history.add(ClusterSnapshot(BEGIN, {"a": BrokerView("a", "c", {})}))
    history.add(snapshot(1))
    assert history.rate("sent") == history.rate("sent", "orders") == history.rate("broker in", "a") == 5


def test_the_window_of_rates_is_said_while_there_is_less_than_a_minute():
    assert [history_of(count).rate_window for count in (0, 1, 3, 7, 50)] == [0, 0, 20, 60, 60]


def test_a_range_has_the_samples_of_its_time_and_a_day_those_before_the_hour():
    history = history_of(1000)  # almost three hours
    for seconds, count in ((900, 90), (3600, 359)):
        rates = history.rates("sent", seconds=seconds)
        assert len(rates) == count
        assert {point.value for point in rates} == {5.0}
    day = history.rates("sent", seconds=86_400)
    assert day[0].time_ms == BEGIN + 300_000 and {point.value for point in day} == {5.0}
    assert [point.time_ms for point in day] == sorted({point.time_ms for point in day})
    assert len(history.values("lag", "billing", most=48)) in range(48, 60)
    assert history.values("lag", "billing", most=48)[-1] == history.values("lag", "billing")[-1]


def test_a_rate_is_unknown_while_a_broker_is_silent():
    history = history_of(20)
    history.add(snapshot(20, error="it does not answer"))
    assert history.rates("sent")[-1].value is None
    assert history.rates("broker in", "a")[-1].value is None
    assert history.rate("sent") == 5  # of the samples before
    assert history.rate("broker in", "a") is None  # what it takes now is not known


def test_sums_without_the_figures_of_a_broker_are_a_gap_unless_the_console_must_not_see_them():
    for refused, lag in ((False, None), (True, 400)):
        history = history_of(20)
        lacking = snapshot(20)
        lacking.brokers["b"] = BrokerView("b", "c", {}, error="it says nothing", refused=refused)
        history.add(lacking)
        assert [history.values("lag", name)[-1].value for name in ("", "billing")] == [lag, lag]
        assert (history.values("sent", "orders")[-1].value is None) is not refused


def test_what_is_gone_for_an_hour_is_forgotten():
    history = history_of(5)
    for number in range(5, 800):
        history.add(ClusterSnapshot(BEGIN + number * SAMPLE * 1000, {}))
    assert history.values("lag", "billing") == []
