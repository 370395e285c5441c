"""The judge finds each fault in a made-up history, and none in a good one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.failover.history import Accident, Began, Deleted, History, Kind, Outcome, Seen, Sent, Stored
from tests.failover.judge import What, judge

A, B = "127.0.0.1:1", "127.0.0.1:2"
GROUPS = ("g", "h")


@dataclass
class Made:
    """A history in which A is master, then B, and everything goes well; tests spoil it."""

    lines: list

    def change(self, kind, body, **changes):
        """Replace fields of all lines of one kind with this body."""
        for at, line in enumerate(self.lines):
            if isinstance(line, kind) and line.body == body:
                fields = {name: getattr(line, name) for name in line.__struct_fields__} | changes
                self.lines[at] = kind(**fields)

    def drop(self, kind, body):
        self.lines = [line for line in self.lines if not (isinstance(line, kind) and line.body == body)]

    def add(self, *lines):
        self.lines.extend(lines)

    def faults(self):
        return {fault.what for fault in judge(History(self.lines), GROUPS).faults}


def confirmed(body, offset, *, at, broker=A, kind=Kind.PLAIN, **more):
    """A confirmed send, with its delivery to both groups and its place at last. Offset None: somewhere later."""
    place = {"queue": 0, "offset": offset} if offset is not None else {}
    sent = Sent(body, kind, at, at + 0.1, Outcome.CONFIRMED, "t", broker, **place, **more)
    found = len(body) * 1000 if offset is None else offset
    seen = [Seen(group, "t", 0, found, body, at + 0.2) for group in GROUPS]
    return [sent, *seen, Stored("t", 0, found, body)]


@pytest.fixture
def made():
    lines = [
        Began(1, A, 0.0),
        *confirmed("a0", 0, at=1.0),
        *confirmed("a1", 1, at=1.0),
        *confirmed("late", 2, at=2.0),
        Accident("kill master", 2.5, "A"),
        Sent("unanswered", Kind.PLAIN, 2.4, 5.0),
        Sent("stored unanswered", Kind.PLAIN, 2.4, 5.0),
        Stored("t", 0, 3, "stored unanswered"),
        Began(2, B, 3.0),
        *confirmed("b4", 4, at=4.0, broker=B),
        *confirmed("b5", 5, at=5.0, broker=B),
        *confirmed("delayed", None, at=5.0, broker=B, kind=Kind.DELAYED, once=True),
        *confirmed("transaction", None, at=5.0, broker=B, kind=Kind.TRANSACTION, once=True),
        Sent("rolled", Kind.TRANSACTION, 5.0, 5.1, Outcome.ROLLED_BACK),
        Seen("g", "t", 0, 1, "a1", 9.0),  # again
    ]
    return Made(lines)


def test_a_good_history_has_no_faults_and_says_what_it_saw(made):
    verdict = judge(History(made.lines), GROUPS)
    assert verdict.faults == []
    assert (verdict.sent, verdict.confirmed, verdict.masters) == (10, 7, 2)
    assert verdict.repeats == {"g": 1}
    assert verdict.longest_pause == pytest.approx(2.0)
    assert verdict.pauses == {"kill master": [pytest.approx(1.6)]}
    assert "7 confirmed, 2 masters, longest pause 2.00 s, repeated deliveries: g 1; 0 faults" in str(verdict)
    assert "kill master: 1 times, pause median 1.60 s, at most 1.60 s" in str(verdict)


def test_a_history_without_a_confirmation_has_no_faults():
    verdict = judge(History([Accident("kill master", 1.0)]), GROUPS)
    assert (verdict.faults, verdict.confirmed, verdict.longest_pause) == ([], 0, 0.0)


def test_a_confirmed_message_that_is_nowhere_is_lost(made):
    made.drop(Stored, "late")
    made.drop(Seen, "late")
    assert made.faults() == {What.LOST, What.UNDELIVERED}


@pytest.mark.parametrize("body", ["delayed", "transaction"])
def test_a_confirmed_message_that_never_comes_out_is_lost(made, body):
    made.drop(Stored, body)
    made.drop(Seen, body)
    assert made.faults() == {What.LOST, What.UNDELIVERED}


def test_a_confirmed_message_at_another_place_is_moved(made):
    made.change(Stored, "late", offset=9)
    made.change(Seen, "late", offset=9)
    assert made.faults() == {What.MOVED}


def test_a_confirmed_message_in_another_queue_is_moved(made):
    made.change(Stored, "late", queue=3)
    made.change(Seen, "late", queue=3)
    assert made.faults() == {What.MOVED}


def test_a_second_copy_of_a_repeated_attempt_is_no_fault(made):
    made.add(Stored("t", 0, 20, "late"), Seen("g", "t", 0, 20, "late", 9.0))
    assert made.faults() == set()


def test_a_place_that_was_confirmed_for_two_messages(made):
    made.add(Sent("other", Kind.PLAIN, 2.0, 2.1, Outcome.CONFIRMED, "t", A, 0, 4))
    assert What.TWICE in made.faults()


def test_a_message_that_a_group_saw_and_that_is_gone(made):
    made.add(Seen("g", "t", 0, 3, "unanswered", 2.6))
    assert made.faults() == {What.GONE}


def test_a_message_that_a_group_saw_at_a_place_where_nothing_is(made):
    made.add(Seen("g", "t", 0, 77, "unanswered", 2.6))
    assert made.faults() == {What.GONE}


def test_a_confirmed_message_that_one_group_never_got(made):
    made.lines = [
        line for line in made.lines if not (isinstance(line, Seen) and line.group == "h" and line.body == "b4")
    ]
    assert made.faults() == {What.UNDELIVERED}


def test_an_old_master_that_confirms_what_was_sent_after_the_new_one_had_begun(made):
    made.add(*confirmed("old", 6, at=4.5, broker=A))
    assert What.OLD_MASTER in made.faults()


def test_an_old_master_whose_answer_was_only_late_is_no_fault(made):
    made.change(Sent, "late", answered_at=8.0)  # it was sent before, and the answer was stuck in a socket
    assert made.faults() == set()


def test_a_master_that_confirms_before_the_registry_was_looked_at_again_is_no_fault(made):
    made.lines = [line for line in made.lines if not isinstance(line, Began)]
    made.add(Began(1, A, 0.0), Began(2, B, 4.05))
    assert made.faults() == set()


def test_a_master_that_comes_back_under_a_later_epoch_is_no_fault(made):
    made.add(*confirmed("back", 6, at=7.0, broker=A), Began(3, A, 6.5))
    assert made.faults() == set()


def test_a_master_that_confirms_between_two_epochs_of_its_own_is_found(made):
    made.add(*confirmed("between", 6, at=5.5, broker=A), *confirmed("b7", 7, at=6.0, broker=B))
    made.add(*confirmed("back", 8, at=7.0, broker=A), Began(3, A, 6.5))
    assert made.faults() == {What.OLD_MASTER}


@pytest.mark.parametrize("body", ["delayed", "transaction"])
def test_a_message_that_was_sent_once_and_comes_out_twice(made, body):
    made.add(Stored("t", 0, 30, body))
    assert made.faults() == {What.DOUBLED}


def test_a_message_that_was_sent_again_may_come_out_twice(made):
    made.change(Sent, "delayed", once=False)
    made.add(Stored("t", 0, 30, "delayed"))
    assert made.faults() == set()


def test_a_rolled_back_message_that_is_visible(made):
    made.add(Stored("t", 0, 30, "rolled"))
    assert made.faults() == {What.ROLLED_BACK}


def test_a_message_that_nobody_sent(made):
    made.add(Stored("t", 0, 30, "who"))
    assert made.faults() == {What.INVENTED}


def test_a_message_before_one_that_was_confirmed_earlier(made):
    made.change(Sent, "b4", sent_at=6.0, answered_at=6.1)
    assert made.faults() == {What.DISORDER}


def test_a_message_before_several_of_which_one_was_confirmed_earlier(made):
    made.change(Sent, "a1", answered_at=8.0)
    made.change(Sent, "a0", sent_at=4.5, answered_at=4.6)
    assert What.DISORDER in made.faults()


def test_a_history_is_the_same_after_it_was_saved(made, tmp_path):
    history = History(made.lines)
    history.save(tmp_path / "history")
    assert History.load(tmp_path / "history").lines == history.lines


def test_a_message_that_retention_deleted_was_where_groups_saw_it(made):
    for body in ("a0", "a1"):
        made.drop(Stored, body)
    assert made.faults() == {What.LOST, What.GONE}
    made.add(Deleted("t", 0, before=2))
    assert made.faults() == set()


def test_a_message_that_no_group_saw_before_retention_deleted_it_is_lost(made):
    made.drop(Stored, "a0")
    made.drop(Seen, "a0")
    made.add(Deleted("t", 0, before=2))
    assert made.faults() == {What.LOST, What.UNDELIVERED}


def test_what_a_group_saw_behind_the_deleted_messages_must_be_there(made):
    made.add(Deleted("t", 0, before=2), Seen("g", "t", 0, 77, "unanswered", 2.6))
    assert made.faults() == {What.GONE}


def test_groups_that_saw_different_messages_at_a_deleted_place_are_a_fault(made):
    made.drop(Stored, "a0")
    made.add(Seen("h", "t", 0, 0, "a1", 1.5), Deleted("t", 0, before=1))
    assert What.GONE in made.faults()
