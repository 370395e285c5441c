"""Dividing queue ranges into tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.message import MessageQueue
from pyromq.spark.read.plan import QueueRange, partition


def ranges(*lengths, start=0):
    return [QueueRange(MessageQueue("t", "b", number), start, start + n) for number, n in enumerate(lengths)]


def test_many_short_queues_are_packed_into_few_tasks():
    tasks = partition(ranges(*[10] * 64), max_tasks=2)
    assert [sum(map(len, task)) for task in tasks] == [320, 320]


def test_a_long_queue_is_split_when_more_tasks_are_wanted():
    (a,), (b,) = partition(ranges(100), min_tasks=2)
    assert (a.start, a.end, b.start, b.end) == (0, 50, 50, 100)


def test_no_task_has_more_records_than_allowed():
    tasks = partition(ranges(100, 5), max_records=30)
    assert max(sum(map(len, task)) for task in tasks) <= 30


def test_empty_ranges_need_no_task():
    assert partition(ranges(0, 0)) == []


@given(
    st.lists(st.integers(0, 500), max_size=20),
    st.none() | st.integers(1, 10),
    st.none() | st.integers(10, 20),
    st.none() | st.integers(1, 100),
)
def test_every_offset_is_read_exactly_once(lengths, min_tasks, max_tasks, max_records):
    wanted = ranges(*lengths, start=7)
    tasks = partition(wanted, min_tasks=min_tasks, max_tasks=max_tasks, max_records=max_records)
    read = [(r.queue.queue_id, offset) for task in tasks for r in task for offset in range(r.start, r.end)]
    assert sorted(read) == [(r.queue.queue_id, offset) for r in wanted for offset in range(r.start, r.end)]
    assert len(tasks) <= (max_tasks or 10**9)


@pytest.mark.parametrize("lengths", [(3, 1, 2), (1,) * 9])
def test_a_task_reads_its_queues_in_order(lengths):
    for task in partition(ranges(*lengths), max_tasks=2):
        assert task == sorted(task, key=lambda r: (r.queue, r.start))
