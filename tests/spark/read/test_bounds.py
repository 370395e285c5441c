"""From options to offset ranges."""

import pytest

from pyromq.errors import TopicNotFound, UsageError
from pyromq.message import MessageQueue
from pyromq.spark.given_options import read_options
from pyromq.spark.read.bounds import DataLoss, ReadBounds

BEGAN = 10**12  # ms since 1970
FIRST, SECOND = MessageQueue("x", "b", 0), MessageQueue("x", "b", 1)


class TwoQueues:
    """Queue 0 holds offsets 5 to 10, stored at BEGAN + 500, + 600, ... ms; queue 1 is empty."""

    def absent(self):
        return {}

    def brokers(self):
        return ["b"]

    def deleted(self, places):
        return set()

    def topics(self):
        return ["%RETRY%x", "rmq_sys_x", "x"]

    def bounds(self, topics):
        return {FIRST: (5, 10), SECOND: (0, 0)} if list(topics) == ["x"] else {}

    def live_bounds(self, bounds):
        return bounds

    def first_since(self, queue, time_ms, bounds):
        return min(max(-(-(time_ms - BEGAN) // 100), bounds[0]), bounds[1])

    def committed(self, queues, group):
        return {queue: 8 if queue == FIRST and group == "g" else None for queue in queues}


def planned(**options):
    return [(r.start, r.end) for r in ReadBounds(read_options({"subscribe": "x"} | options), TwoQueues()).ranges()]


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({}, [(5, 10), (0, 0)]),
        ({"startingOffsets": "group", "group": "g"}, [(8, 10), (0, 0)]),
        ({"startingOffsets": "group", "group": "other"}, [(5, 10), (0, 0)]),
        ({"startingOffsets": '{"x":{"b":{"0":7}}}'}, [(7, 10), (0, 0)]),
        ({"startingOffsets": '{"x":{"b":{"0":-1}}}'}, [(10, 10), (0, 0)]),
        ({"endingOffsets": '{"x":{"b":{"0":6}}}'}, [(5, 6), (0, 0)]),
        ({"startingTimestamp": "1000000000650"}, [(7, 10), (0, 0)]),
        ({"startingTimestamp": "1000000009999"}, [(10, 10), (0, 0)]),
        ({"startingTimestamp": "1000000000600", "endingTimestamp": "1000000000800"}, [(6, 8), (0, 0)]),
        ({"startingOffsetsByTimestamp": '{"x":{"b":{"0":1000000000700}}}'}, [(7, 10), (0, 0)]),
        ({"endingOffsetsByTimestamp": '{"x":{"b":{"0":1000000000700}}}'}, [(5, 7), (0, 0)]),
    ],
)
def test_where_queues_begin_and_end(options, ranges):
    assert planned(**options) == ranges


@pytest.mark.parametrize(
    "name", ["startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"]
)
def test_a_queue_that_a_table_names_must_exist(name):
    with pytest.raises(UsageError, match=f"option {name} names queue 2 of topic x at b, which this query does not"):
        planned(**{name: '{"x":{"b":{"2":0}}}'})


def test_a_queue_that_ends_before_it_begins_is_named():
    later = {"startingOffsets": '{"x":{"b":{"0":9}}}', "endingTimestamp": str(BEGAN + 600)}
    with pytest.raises(UsageError, match="queue 0 of topic x at b would begin at 9 and end at 6"):
        planned(**later)


def test_a_group_that_is_past_the_end_leaves_nothing_to_read():
    assert planned(startingOffsets="group", group="g", endingOffsets='{"x":{"b":{"0":6}}}') == [(8, 8), (0, 0)]


def test_no_message_since_a_time_is_an_error_where_that_is_wanted():
    with pytest.raises(UsageError, match=r"queue 0 of topic x at b has no message stored at 1000000009999 ms"):
        planned(startingTimestamp="1000000009999", startingOffsetsByTimestampStrategy="error")


def test_offsets_that_are_gone_are_an_error_that_says_what_is_there():
    with pytest.raises(DataLoss, match=r"queue 0 of topic x at b is 2; the queue holds 5 to 10.*failOnDataLoss"):
        planned(startingOffsets='{"x":{"b":{"0":2}}}')


def test_without_fail_on_data_loss_the_rest_is_read():
    assert planned(startingOffsets='{"x":{"b":{"0":2}}}', failOnDataLoss="false") == [(5, 10), (0, 0)]


def test_a_queue_that_does_not_exist_is_named():
    options = read_options({"assign": '{"x":{"b":[7]}}'})
    with pytest.raises(UsageError, match=r"queue 7 of topic x at b, which does not exist"):
        ReadBounds(options, TwoQueues()).ranges()


def test_a_pattern_means_applications_topics_only():
    ranges = ReadBounds(read_options({"subscribePattern": ".*x"}), TwoQueues()).ranges()
    assert {r.queue.topic for r in ranges} == {"x"}


def test_a_pattern_that_matches_nothing_is_named():
    with pytest.raises(TopicNotFound, match=r"'y\.\*'"):
        ReadBounds(read_options({"subscribePattern": "y.*"}), TwoQueues()).ranges()
