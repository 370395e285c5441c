"""Sessions and failed sign-ins, in memory: a restart signs everyone out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from pyromq.clock import Clock
from pyromq.console.security.client_address import counted_address

MOST_SESSIONS = 10_000
MOST_TRIED = 10_000  # pairs of address and name with remembered failures
FREE_TRIES = 5  # of one name from one address; later ones must wait
FREE_OF_ADDRESS = 100  # of all names from one address: more than an office behind one address mistypes
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0  # seconds
FORGOTTEN_SECONDS = 3600.0  # time after the last failure


@dataclass(frozen=True, slots=True)
class Notice:
    """A text for the next page: `kind` is `done`, `failed` or `note`."""

    kind: str
    text: str
    link: str | None = None
    link_text: str = ""


@dataclass(slots=True)
class BrowserSession:
    """The session of one browser. `name` is None if there are no accounts."""

    key: str
    name: str | None
    csrf: str
    ends: float
    notices: list[Notice] = field(default_factory=list)


class Sessions:
    """Sessions by the key in the browser's cookie."""

    def __init__(self, clock: Clock, *, hours: float) -> None:
        self._clock = clock
        self._seconds = hours * 3600
        self._sessions: dict[str, BrowserSession] = {}

    def begin(self, name: str | None) -> BrowserSession:
        now = self._clock.monotonic()
        if len(self._sessions) >= MOST_SESSIONS:
            self._sessions = {key: each for key, each in self._sessions.items() if each.ends > now}
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]  # the oldest
        session = BrowserSession(secrets.token_urlsafe(32), name, secrets.token_urlsafe(32), now + self._seconds)
        self._sessions[session.key] = session
        return session

    def find(self, key: str | None) -> BrowserSession | None:
        session = self._sessions.get(key or "")
        if session is not None and session.ends <= self._clock.monotonic():
            del self._sessions[session.key]
            return None
        return session

    def end(self, session: BrowserSession) -> None:
        self._sessions.pop(session.key, None)

    def end_all_of(self, name: str) -> None:
        """End all sessions of an account that was deleted, or has a new password or role."""
        self._sessions = {key: each for key, each in self._sessions.items() if each.name != name}


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    last: float  # monotonic seconds
    next: float  # the next sign-in is refused until then


class SignInFailures:
    """Failed sign-ins. After five with a name from one address, each further one must wait, twice as long each time.

    A name is never refused for all addresses, because a stranger could lock out its owner. An address is refused for
    all names only after a hundred failures.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[tuple[str, str | None], _Failures] = {}  # by address and name; None: all names

    def pause(self, address: str, name: str) -> float:
        """Return the number of seconds until the next permitted sign-in."""
        now = self._clock.monotonic()
        return max([0.0, *(found.next - now for key in _keys(address, name) if (found := self._failed.get(key)))])

    def failed(self, address: str, name: str) -> None:
        now = self._clock.monotonic()
        for key, free in _keys(address, name).items():
            before = self._failed.pop(key, None)
            count = 1 + (before.count if before is not None and now - before.last < FORGOTTEN_SECONDS else 0)
            doublings = min(count - free, 10)  # the difference may be large
            wait = min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE) if doublings >= 0 else 0.0
            self._failed[key] = _Failures(count, now, now + wait)
            while len(self._failed) > MOST_TRIED:
                del self._failed[next(iter(self._failed))]

    def succeeded(self, address: str, name: str) -> None:
        for key in _keys(address, name):
            self._failed.pop(key, None)


def _keys(address: str, name: str) -> dict[tuple[str, str | None], int]:
    """Return what failures are counted by, with how many are free of each."""
    counted = counted_address(address)
    return {(counted, name): FREE_TRIES, (counted, None): FREE_OF_ADDRESS}
