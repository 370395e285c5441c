"""What a broker is made of: parts, each one capability as the broker sees it - when it is called, and for what.

A broker is a list of parts, entered forwards and left backwards; none knows where it stands in the list, or the others.

    load      forwards: the store is open                 stop      backwards: the port is open for the last time
    mend      forwards: the port is open                  close     backwards: no request comes, no step runs any more
    start     forwards: requests come, no step has run    persist   backwards: the store is closed, all of it on disk

In between requests are answered, steps run, and what is `unsaved` is written now and then, backwards as well: what a
part notes in the table of an earlier one is there before that is written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING

from pyromq.net.tasks import Alarm
from pyromq.remoting.dispatch import Guard
from pyromq.remoting.hooks import RemotingHook

if TYPE_CHECKING:
    from pyromq.speedups.fast_path import FastHandler

Save = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Step:
    """Work in slices of a few milliseconds.

    `act` returns in how many seconds it wants to run again; None: not before the alarm rings, if there is one.
    """

    act: Callable[[], float | None]
    alarm: Alarm | None = None
    first_after: float = 0.0  # seconds


def periodic(seconds: float, act: Callable[[], object]) -> Step:
    """Return the step that does the same each so many seconds, the first time after as many."""

    @wraps(act)
    def again() -> float:
        act()
        return seconds

    return Step(again, first_after=seconds)


def _nothing() -> None:
    pass


async def _nothing_to_wait_for() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BrokerModule:
    """One capability. Whatever is left out, it has nothing to do then.

    `load` raises what keeps a broker from starting. `unsaved` returns what writes, in any thread, the part's table as
    far as that may be written by now, and None where there is no news; `persist` writes the rest. Writing raises
    `StoreNotWritable`, also in `close`, and costs the other parts nothing.
    """

    answerers: Sequence[object] = ()  # with methods marked by `@answers`
    fast_path: Sequence[FastHandler] = ()  # compiled; they answer hot requests before those, with the same replies
    guard: Guard | None = None  # asked before requests are answered; at most one part has one
    hooks: Sequence[RemotingHook] = ()  # told of the calls at the broker's port
    steps: Sequence[Step] = ()
    load: Callable[[], None] = _nothing
    mend: Callable[[], None] = _nothing  # what a crash left half done; records can be appended
    start: Callable[[], Awaitable[None]] = _nothing_to_wait_for
    unsaved: Callable[[], Save | None] = _nothing
    log_needed_from: Callable[[], int] | None = None  # no record before this log offset is needed
    stop: Callable[[], Awaitable[None]] = _nothing_to_wait_for
    close: Callable[[], None] = _nothing
    persist: Callable[[], None] = _nothing
