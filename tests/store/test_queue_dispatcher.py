"""The entries of a queue rebuilt by a walk over the log, past records that are damaged, lost or of a deleted topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.making import TOPIC, message

from pyromq.message import StoredMessage, SysFlag
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue, Mappings
from pyromq.store.queue_dispatcher import QueueDispatcher

SIZE = 200


@pytest.fixture
def queue(tmp_path: Path) -> ConsumeQueue:
    return ConsumeQueue(tmp_path / TOPIC / "0", 8, mappings=Mappings(100))


@pytest.fixture
def dispatcher() -> QueueDispatcher:
    return QueueDispatcher(())


def records(*queue_offsets: int, first: int = 0) -> list[StoredMessage]:
    """Return records back to back with these queue offsets. Their numbers are their places in the log."""
    found = []
    for number, queue_offset in enumerate(queue_offsets, first):
        each = message(number)
        each.queue_offset, each.log_offset, each.size = queue_offset, number * SIZE, SIZE
        found.append(each)
    return found


def replay(
    dispatcher: QueueDispatcher,
    queue: ConsumeQueue,
    found: list[StoredMessage],
    *,
    start: int = 0,
    complete: bool = True,
) -> bool:
    dispatcher.begin_replay(start)
    return all(dispatcher.replay(each, queue, complete=complete) for each in found) and dispatcher.end_replay(
        complete=complete
    )


def places(queue: ConsumeQueue) -> list[int | None]:
    """Return the numbers of the records that the entries lead to, None for filler entries."""
    entries = [queue.find(offset) for offset in range(queue.max_offset)]
    return [None if entry is None or entry.size == FILLER_SIZE else entry.log_offset // SIZE for entry in entries]


def test_records_in_order_get_their_entries(dispatcher: QueueDispatcher, queue: ConsumeQueue) -> None:
    assert replay(dispatcher, queue, records(0, 1, 2))
    assert places(queue) == [0, 1, 2]


def test_records_that_a_queue_has_are_passed_over(dispatcher: QueueDispatcher, queue: ConsumeQueue) -> None:
    replay(dispatcher, queue, records(0, 1, 2))
    assert replay(dispatcher, queue, records(7, 1, 2, 3))  # the first one is of a deleted topic
    assert places(queue) == [0, 1, 2, 3]


def test_records_without_queue_entry_get_none(dispatcher: QueueDispatcher, queue: ConsumeQueue) -> None:
    [half] = records(0)
    half.sys_flag = SysFlag.HALF
    assert replay(dispatcher, queue, [half])
    assert places(queue) == []


def test_lost_messages_become_fillers_once_the_whole_log_was_read(
    dispatcher: QueueDispatcher, queue: ConsumeQueue
) -> None:
    found = [*records(0, 1), *records(4, 5, first=7)]
    assert not replay(dispatcher, queue, found, complete=False)
    assert places(queue) == [0, 1]
    assert replay(dispatcher, queue, found)
    assert places(queue) == [0, 1, None, None, 7, 8]


def test_more_messages_than_the_log_has_room_for_are_not_lost(dispatcher: QueueDispatcher, queue: ConsumeQueue) -> None:
    assert replay(dispatcher, queue, records(0, 1, 40, 41))
    assert places(queue) == [0, 1, 2, 3]


@pytest.mark.parametrize(("start", "first"), [(0, 0), (SIZE, 3)])
def test_first_messages_are_lost_in_a_log_that_begins_at_0_and_else_expired(
    dispatcher: QueueDispatcher, queue: ConsumeQueue, start: int, first: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert replay(dispatcher, queue, records(3, 4, first=20), start=start)
    assert places(queue) == [None, None, None, 20, 21]
    assert queue.min_offset == first
    assert ("has lost 3 messages" in caplog.text) is (start == 0)  # retention is no loss


@pytest.mark.parametrize("damaged", [0, 1, 7, 1 << 40])
def test_a_record_whose_queue_offset_is_damaged_gets_the_free_place(
    dispatcher: QueueDispatcher, queue: ConsumeQueue, damaged: int
) -> None:
    assert replay(dispatcher, queue, records(0, 1, damaged, 3, 4))
    assert places(queue) == [0, 1, 2, 3, 4]
    assert dispatcher.damaged_heads == [(2 * SIZE, damaged)]


@pytest.mark.parametrize("damaged", [1, 7, 1 << 40])
def test_a_record_of_another_queue_gets_no_entry(
    dispatcher: QueueDispatcher, queue: ConsumeQueue, damaged: int
) -> None:
    assert replay(dispatcher, queue, records(0, 1, damaged, 2, 3))
    assert places(queue) == [0, 1, 3, 4]
    assert dispatcher.damaged_heads == [(2 * SIZE, damaged)]


@pytest.mark.parametrize("again", [(0,), (0, 1), (0, 1, 2, 3)])
def test_a_topic_that_was_created_again_begins_anew(
    dispatcher: QueueDispatcher, queue: ConsumeQueue, again: tuple[int, ...]
) -> None:
    assert replay(dispatcher, queue, records(0, 1, 2, *again))
    assert places(queue) == [3 + number for number in range(len(again))]
    assert dispatcher.damaged_heads == []


def test_a_topic_of_one_message_may_be_created_again(dispatcher: QueueDispatcher, queue: ConsumeQueue) -> None:
    assert replay(dispatcher, queue, records(0, 0, 1))
    assert places(queue) == [1, 2]
