"""The state of one assigned queue: fetched, handed out, finished."""

from pyromq.client.consumer.pull.assigned_queue import AssignedQueue
from pyromq.message import MessageQueue, StoredMessage


def messages(*offsets):
    return [StoredMessage("t", b"x", queue_offset=offset) for offset in offsets]


def assigned_at(offset):
    assigned = AssignedQueue(MessageQueue("t", "b", 0), "*")
    assigned.restart(offset)
    return assigned


def test_a_whole_batch_moves_the_position_to_where_the_broker_said():
    assigned = assigned_at(5)
    assert assigned.add(messages(5, 7), 9)
    assert assigned.position == 5
    assert [m.queue_offset for m in assigned.take().hand_out_all()] == [5, 7]
    assert assigned.position == 9


def test_message_by_message_the_position_follows():
    assigned = assigned_at(5)
    assigned.add(messages(5, 7), 9)
    batch = assigned.take()
    batch.hand_out_one()
    assert assigned.position == 6
    batch.hand_out_one()
    assert assigned.position == 9


def test_pulls_without_a_wanted_message_make_progress():
    assigned = assigned_at(5)
    assert not assigned.add([], 100)
    assert assigned.position == 100


def test_progress_without_messages_does_not_skip_those_still_to_hand_out():
    assigned = assigned_at(5)
    assigned.add(messages(5), 6)
    assigned.add([], 100)
    assert assigned.position == 5


def test_progress_without_messages_does_not_skip_those_left_of_a_batch():
    assigned = assigned_at(5)
    assigned.add(messages(5, 7), 9)
    batch = assigned.take()
    batch.hand_out_one()
    assigned.add([], 100)
    assert assigned.position == 6
    batch.hand_out_one()
    assigned.add([], 100)
    assert assigned.position == 100


def test_a_corrected_offset_lowers_what_is_finished():
    assigned = assigned_at(50)
    assigned.correct(3)
    assert (assigned.fetch_offset, assigned.position, assigned.finished) == (3, 3, 3)


def test_what_is_buffered_is_counted():
    assigned = assigned_at(0)
    assigned.add(messages(0, 1), 2)
    assigned.add(messages(2), 3)
    assert (assigned.ready_count, assigned.ready_bytes) == (3, 3)
    assigned.take()
    assert (assigned.ready_count, assigned.ready_bytes) == (1, 1)


def test_a_batch_from_before_a_seek_does_not_move_the_position():
    assigned = assigned_at(0)
    assigned.add(messages(0, 1), 2)
    batch = assigned.take()
    assigned.restart(50)
    batch.hand_out_one()
    batch.hand_out_all()
    assert assigned.position == 50
