"""Who is signed in, in memory: a restart signs everybody out. And how often one may try a password."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from pyromq.clock import Clock

MOST_SESSIONS = 10_000
MOST_TRIED = 10_000  # names and addresses whose failures are remembered
FREE_TRIES = 5  # before each further one has to wait
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0  # seconds


@dataclass(frozen=True, slots=True)
class Notice:
    """What is told at the next page: `kind` is `done`, `failed` or `note`."""

    kind: str
    text: str
    link: str | None = None
    link_text: str = ""


@dataclass(slots=True)
class Session:
    """One browser. `name` is None where nobody signed in, because there are no accounts."""

    key: str
    name: str | None
    csrf: str
    ends: float
    notices: list[Notice] = field(default_factory=list)


class Sessions:
    """Sessions by the key that a browser's cookie has."""

    def __init__(self, clock: Clock, *, hours: float) -> None:
        self._clock = clock
        self._seconds = hours * 3600
        self._sessions: dict[str, Session] = {}

    def begin(self, name: str | None) -> Session:
        now = self._clock.monotonic()
        if len(self._sessions) >= MOST_SESSIONS:
            self._sessions = {key: each for key, each in self._sessions.items() if each.ends > now}
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]  # the oldest
        session = Session(secrets.token_urlsafe(32), name, secrets.token_urlsafe(32), now + self._seconds)
        self._sessions[session.key] = session
        return session

    def find(self, key: str | None) -> Session | None:
        session = self._sessions.get(key or "")
        if session is not None and session.ends <= self._clock.monotonic():
            del self._sessions[session.key]
            return None
        return session

    def end(self, session: Session) -> None:
        self._sessions.pop(session.key, None)

    def end_all_of(self, name: str) -> None:
        """Sign an account out everywhere: it was deleted, or has a new password or role."""
        self._sessions = {key: each for key, each in self._sessions.items() if each.name != name}


class Tries:
    """Failed sign-ins by name and by address: after five, each further one waits, twice as long each time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[int, float]] = {}  # how many, and when the next may come

    def pause(self, *of: str) -> float:
        """Return for how many seconds there is no further try."""
        now = self._clock.monotonic()
        return max([0.0, *(self._failed[each][1] - now for each in of if each in self._failed)])

    def failed(self, *of: str) -> None:
        now = self._clock.monotonic()
        for each in of:
            count = self._failed.pop(each, (0, 0.0))[0] + 1
            over = count - FREE_TRIES
            wait = min(FIRST_PAUSE * 2**over, LONGEST_PAUSE) if over >= 0 else 0.0
            self._failed[each] = (count, now + wait)
            while len(self._failed) > MOST_TRIED:
                del self._failed[next(iter(self._failed))]

    def succeeded(self, *of: str) -> None:
        for each in of:
            self._failed.pop(each, None)
