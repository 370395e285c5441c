"""The audit log of the console: a line of JSON before each change is tried, and a line with the change's outcome."""

from __future__ import annotations

import itertools
import os
import secrets
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from pyromq.clock import Clock
from pyromq.errors import UsageError

ASKED, DONE, FAILED, REFUSED = "asked", "done", "failed", "refused"
KEPT_LINES = 5_000  # limit of log lines that the page of the audit log shows
MAX_TEXT = 300  # limit of characters in one field of a log line


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A requested change and its outcome. Outcome `asked` means unknown, because the console ended meanwhile."""

    id: str
    time: str
    account: str
    address: str
    what: str
    outcome: str
    details: dict[str, str] = {}
    error: str = ""

    @property
    def time_ms(self) -> int:
        return int(datetime.fromisoformat(self.time).timestamp() * 1000)


class ConsoleAuditLog:
    """Appends to the file of the audit log, which the console never shortens."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[AuditEntry] = deque(maxlen=KEPT_LINES)
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        if path.exists():
            with path.open("rb") as file:
                for line in deque(file, maxlen=KEPT_LINES):
                    try:
                        self._recent.append(msgspec.json.decode(line, type=AuditEntry))
                    except msgspec.DecodeError:
                        continue  # an incomplete line after a crash
        try:
            self._file = open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")  # noqa: PTH123, SIM115
        except OSError as error:
            raise UsageError(f"the audit log {path} cannot be written: {error.strerror}") from error

    def close(self) -> None:
        self._file.close()

    def asked(self, what: str, *, account: str, address: str, details: Mapping[str, str]) -> AuditEntry:
        """Record a change before the change is tried.

        Raises `OSError` if recording fails; the change must not be tried then.
        """
        short = {name: text[:MAX_TEXT] for name, text in details.items() if text}
        entry = AuditEntry(
            id=f"{self._prefix}-{next(self._numbers)}",
            time=self._now(),
            account=account,
            address=address,
            what=what,
            outcome=ASKED,
            details=short,
        )
        self._append(entry)
        return entry

    def ended(self, asked: AuditEntry, outcome: str, *, error: str = "", result: str = "") -> None:
        """Record the outcome of a change."""
        details = {**asked.details, **({"result": result[:MAX_TEXT]} if result else {})}
        self._append(
            msgspec.structs.replace(asked, time=self._now(), outcome=outcome, details=details, error=error[:MAX_TEXT])
        )

    def recent(self) -> list[AuditEntry]:
        """Return the last changes, newest first, each with its outcome."""
        by_id: dict[str, AuditEntry] = {}
        for entry in self._recent:
            by_id.pop(entry.id, None)
            by_id[entry.id] = entry
        return list(by_id.values())[::-1]

    def _append(self, entry: AuditEntry) -> None:
        self._file.write(msgspec.json.encode(entry) + b"\n")
        self._file.flush()
        self._recent.append(entry)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
