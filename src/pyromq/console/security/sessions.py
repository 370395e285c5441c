"""Sessions and failed sign-ins of the console, in memory: a restart signs everyone out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyromq.clock import Clock
from pyromq.console.security.client_address import counted_address

MAX_SESSIONS = 10_000
MAX_TRIED = 10_000  # limit of pairs of address and name whose failed sign-ins are remembered
FREE_TRIES = 5  # failed sign-ins of one name from one address before a pause is required
FREE_OF_ADDRESS = 100  # failed sign-ins of all names from one address: more than an office behind one address makes
FIRST_PAUSE, LONGEST_PAUSE = 2.0, 300.0  # first and longest pause after a failed sign-in
MAX_KEPT_FORMS = 64  # limit of forms (64 KiB each) that are kept until their visitors have signed in
KEPT_SECONDS = 900  # time until such a form is forgotten
FORGOTTEN_SECONDS = 3600.0  # time after the last failed sign-in when failures are forgotten


@dataclass(frozen=True, slots=True)
class Notice:
    """A string that the next page shows. `kind` is `done`, `failed` or `note`."""

    kind: str
    text: str
    link: str | None = None
    link_text: str = ""


@dataclass(frozen=True, slots=True)
class RefusedForm:
    """A form that was refused, without its passwords. The next page of the session shows the form with its fields.

    `action` is the path that the form was sent to.
    """

    action: str
    fields: Mapping[str, str]
    error: str


class KeptForms:
    """Forms that were sent after their session had ended, kept until the visitor signs in.

    The browser's cookie has the key of a form. No kept form is carried out.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._forms: dict[str, tuple[float, RefusedForm]] = {}  # each with the time until which it is kept

    def keep(self, form: RefusedForm) -> str:
        """Keep a form, in place of the oldest one if there are too many; return its key."""
        while len(self._forms) >= MAX_KEPT_FORMS:
            del self._forms[next(iter(self._forms))]
        key = secrets.token_urlsafe(32)
        self._forms[key] = self._clock.monotonic() + KEPT_SECONDS, form
        return key

    def find(self, key: str | None) -> RefusedForm | None:
        until, form = self._forms.get(key or "", (0.0, None))
        return form if until > self._clock.monotonic() else None

    def take(self, key: str | None) -> RefusedForm | None:
        """Return a form, and keep it no longer."""
        form = self.find(key)
        self._forms.pop(key or "", None)
        return form


@dataclass(slots=True)
class BrowserSession:
    """The session of one browser. `name` is the account, None if the console has no accounts."""

    key: str
    name: str | None
    csrf: str
    ends: float
    notices: list[Notice] = field(default_factory=list)
    refused: RefusedForm | None = None


class Sessions:
    """The sessions of the console, by the key in the browser's cookie."""

    def __init__(self, clock: Clock, *, hours: float) -> None:
        self._clock = clock
        self._seconds = hours * 3600
        self._sessions: dict[str, BrowserSession] = {}

    def begin(self, name: str | None) -> BrowserSession:
        now = self._clock.monotonic()
        if len(self._sessions) >= MAX_SESSIONS:
            self._sessions = {key: each for key, each in self._sessions.items() if each.ends > now}
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]  # the oldest session
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
        known = list(self._sessions.items())  # at once: another thread may check a password
        self._sessions = {key: each for key, each in known if each.name != name}


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    last: float  # time of the last failure in monotonic seconds
    next: float  # the next sign-in is refused until then


class SignInFailures:
    """Counts failed sign-ins, and delays further ones.

    After five failures of a name from one address, each further sign-in must wait, twice as long each time.

    A name is never refused for all addresses, because a stranger could lock out its owner. An address is refused for
    all names only after a hundred failures.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: dict[tuple[str, str | None], _Failures] = {}  # failures by address and name; name None: all names

    def pause(self, address: str, name: str) -> float:
        """Return the seconds until this name may sign in again from this address; 0 for immediately."""
        now = self._clock.monotonic()
        return max([0.0, *(found.next - now for key in _keys(address, name) if (found := self._failed.get(key)))])

    def failed(self, address: str, name: str) -> None:
        now = self._clock.monotonic()
        for key, free in _keys(address, name).items():
            before = self._failed.pop(key, None)
            count = 1 + (before.count if before is not None and now - before.last < FORGOTTEN_SECONDS else 0)
            doublings = min(count - free, 10)  # limited, because `2**doublings` would become too large
            wait = min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE) if doublings >= 0 else 0.0
            self._failed[key] = _Failures(count, now, now + wait)
            while len(self._failed) > MAX_TRIED:
                del self._failed[next(iter(self._failed))]

    def succeeded(self, address: str, name: str) -> None:
        for key in _keys(address, name):
            self._failed.pop(key, None)


def _keys(address: str, name: str) -> dict[tuple[str, str | None], int]:
    """Return the keys under which a failed sign-in is counted, with the number of failures that need no pause."""
    counted = counted_address(address)
    return {(counted, name): FREE_TRIES, (counted, None): FREE_OF_ADDRESS}
