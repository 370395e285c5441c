"""From options to offset ranges."""

import pytest

from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.spark.offsets import plan_ranges
from pyromq.spark.options import read_options

FIRST, SECOND = MessageQueue("x", "b", 0), MessageQueue("x", "b", 1)


class TwoQueues:
    """Queue 0 holds offsets 5 to 10, stored at 500, 600, ... ms; queue 1 is empty."""

    def queues(self, topic):
        return [FIRST, SECOND]

    def min_offset(self, queue):
        return 5 if queue == FIRST else 0

    def max_offset(self, queue):
        return 10 if queue == FIRST else 0

    def offset_by_time(self, queue, timestamp_ms):
        return min(max(round(timestamp_ms / 100), 5), 9)

    def store_time_at(self, queue, offset):
        return offset * 100 if 5 <= offset < 10 else None


def planned(**options):
    return [(r.start, r.end) for r in plan_ranges(read_options({"subscribe": "x"} | options), TwoQueues())]


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({}, [(5, 10), (0, 0)]),
        ({"startingOffsets": "latest"}, [(10, 10), (0, 0)]),
        ({"startingOffsets": '{"x":{"b":{"0":7}}}'}, [(7, 10), (0, 0)]),
        ({"startingOffsets": '{"x":{"b":{"0":-1}}}'}, [(10, 10), (0, 0)]),
        ({"endingOffsets": '{"x":{"b":{"0":6}}}'}, [(5, 6), (0, 0)]),
        ({"startingTimestamp": "650"}, [(7, 10), (0, 0)]),
        ({"startingTimestamp": "620"}, [(7, 10), (0, 0)]),
        ({"startingTimestamp": "9999"}, [(10, 10), (0, 0)]),
        ({"startingTimestamp": "600", "endingTimestamp": "800"}, [(6, 8), (0, 0)]),
    ],
)
def test_where_queues_begin_and_end(options, ranges):
    assert planned(**options) == ranges


def test_offsets_that_are_gone_are_an_error_that_says_what_is_there():
    with pytest.raises(UsageError, match=r"queue 0 of topic x at b is 2; the queue holds 5 to 10.*failOnDataLoss"):
        planned(startingOffsets='{"x":{"b":{"0":2}}}')


def test_without_fail_on_data_loss_the_rest_is_read():
    assert planned(startingOffsets='{"x":{"b":{"0":2}}}', failOnDataLoss="false") == [(5, 10), (0, 0)]


def test_a_queue_that_does_not_exist_is_named():
    options = read_options({"assign": '{"x":{"b":[7]}}'})
    with pytest.raises(UsageError, match=r"queue 7 of topic x at b, which does not exist"):
        plan_ranges(options, TwoQueues())
