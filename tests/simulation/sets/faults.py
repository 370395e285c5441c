"""Faults put in on purpose, to show that the simulation finds them: each breaks one rule of replication.

A fault replaces methods while `put_in` is entered. None of them is a switch of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyromq.broker.replication import joining
from pyromq.broker.replication.mastership import Mastership
from pyromq.broker.replication.record_view import RecordView
from pyromq.broker.replication.replica import Replica
from pyromq.store import epoch_file
from pyromq.store.epoch_file import EpochFile

from .machine import Machine
from .model_store import RECORD_BYTES, ModelEpochs
from .set_life import SetLife, lives

Patches = dict[tuple[Any, str], Any]
_INHERITED = object()


def no_union() -> Patches:
    """A swap without an answer is taken for one that did not happen."""

    def members(view: RecordView) -> frozenset[Any]:
        return frozenset(view.record.in_sync if view.record else ())

    return {(RecordView, "possible_members"): members, (SetLife, "checks_required"): False}


def same_revision() -> Patches:
    """Reading the record at the same revision is taken for the proof that an open swap did not happen."""
    plain = RecordView._learn

    def learn(view: RecordView, record: Any, revision: int) -> None:
        view._open_swaps.clear()
        plain(view, record, revision)

    return {(RecordView, "_learn"): learn, (SetLife, "checks_required"): False}


def no_promise_on_disk() -> Patches:
    """A promise is forgotten when the process ends."""

    def reopen(epochs: ModelEpochs) -> None:
        epochs.promised = 0

    def begin(epochs: ModelEpochs, epoch: int, start: int, *, log_begin: int = 0) -> None:
        epochs.lines = [line for line in epochs.lines if line.epoch < epoch and line.start <= start]
        EpochFile.begin(epochs, epoch, start, log_begin=log_begin)

    patches = {(ModelEpochs, "reopen"): reopen, (ModelEpochs, "begin"): begin}
    return {**patches, (SetLife, "checks_promises"): False}


def lower_epoch_obeyed() -> Patches:
    """A follower takes the log from a master of a lower epoch than it has promised."""
    plain_hello, plain_frame = Replica.hello_received, Replica.frame_received

    def with_promise(replica: Replica, epoch: int, event: Callable[..., Any], *arguments: Any) -> Any:
        promised = replica.epochs.promised
        replica.epochs.promised = min(promised, epoch)
        try:
            return event(replica, *arguments)
        finally:
            replica.epochs.promised = max(promised, replica.epochs.promised)

    def hello_received(replica: Replica, now: float, link: Any, hello: Any) -> Any:
        if not hello.is_master or replica.is_master:
            return plain_hello(replica, now, link, hello)
        return with_promise(replica, hello.epoch, plain_hello, now, link, hello)

    def frame_received(replica: Replica, now: float, number: int, frame: Any) -> Any:
        return with_promise(replica, frame.epoch, plain_frame, now, number, frame)

    return {(Replica, "hello_received"): hello_received, (Replica, "frame_received"): frame_received}


def incarnation_ignored() -> Patches:
    """A replica that may have lost reported bytes comes back as the same one."""
    return {(Machine, "renews_incarnation"): False}


def cut_one_record_short() -> Patches:
    """The log is cut one record behind the common point: what differs is not cut off whole."""
    return _common_point(lambda common, own_end: common._replace(end=min(own_end, common.end + RECORD_BYTES)))


def end_of_epoch_not_exclusive() -> Patches:
    """An epoch's own start is taken for its end: `>=` instead of `>`."""

    def end_of(line: Any, lines: Any, end: int) -> int:
        return next((later.start for later in lines if later.epoch >= line.epoch), end)

    return {(epoch_file, "_end_of"): end_of}


def reads_not_bounded() -> Patches:
    """Consumers read up to the log's end."""
    return {(SetLife, "readable_end"): staticmethod(lambda log: log.end)}


def added_before_required() -> Patches:
    """A learner is added to the list before it has reached what is confirmed."""
    plain = Mastership._may_join

    def may_join(mastership: Mastership, now: float, follower: Any) -> bool:
        if plain(mastership, now, follower):
            return True
        is_here = follower.is_connected and follower.reported >= 0
        if is_here:
            follower.reported = max(follower.reported, mastership._log.confirmed_end, mastership.start)
        return is_here

    return {(Mastership, "_may_join"): may_join}


def _common_point(change: Callable[[Any, int], Any]) -> Patches:
    plain = epoch_file.common_point

    def common_point(own: Any, other: Any, own_end: int, other_end: int) -> Any:
        common = plain(own, other, own_end, other_end)
        return None if common is None else change(common, own_end)

    return {(joining, "common_point"): common_point}


FAULTS: list[Callable[[], Patches]] = [
    no_union,
    same_revision,
    no_promise_on_disk,
    lower_epoch_obeyed,
    incarnation_ignored,
    cut_one_record_short,
    end_of_epoch_not_exclusive,
    reads_not_bounded,
    added_before_required,
]


@contextmanager
def put_in(fault: Callable[[], Patches]) -> Iterator[None]:
    """Have every life run with a fault."""
    patches = fault()
    plain = {(owner, name): vars(owner).get(name, _INHERITED) for owner, name in patches}
    for (owner, name), value in patches.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name), value in plain.items():
            if value is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def first_found(fault: Callable[[], Patches], first: int, seeds: int) -> tuple[int, str] | None:
    """Return the first seed that finds a fault, and what it says; None if none of the seeds does."""
    for seed in range(first, first + seeds):
        with put_in(fault):
            failed, _ = lives(seed, 1)
        if failed and not lives(seed, 1)[0]:
            return failed[0]
    return None
