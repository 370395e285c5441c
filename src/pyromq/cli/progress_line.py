"""Shows a running count on standard error, if standard error is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

EVERY_SECONDS = 0.2


class ProgressLine:
    """Shows `1,234 sent (5,678/s)` on one line, rewritten a few times a second.

    With `beside_output` the command also prints to standard output, so the line is hidden if standard output is a
    terminal. With `typing` the line is hidden, because it would overwrite the input of the user.
    """

    def __init__(self, done: str, *, beside_output: bool = False, typing: bool = False) -> None:
        self._done = done
        self._shown = sys.stderr.isatty() and not typing and not (beside_output and sys.stdout.isatty())
        self._started = time.monotonic()
        self._last = 0.0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Clear the line before other output is written."""
        if self._shown and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._last = 0.0

    def show(self, count: int) -> None:
        """Show the count, at most once per `EVERY_SECONDS`."""
        if not self._shown:
            return
        now = time.monotonic()
        if now - self._last < EVERY_SECONDS:
            return
        self._last = now
        rate = count / max(now - self._started, 0.001)
        sys.stderr.write(f"\r\x1b[K{count:,} {self._done} ({rate:,.0f}/s)")
        sys.stderr.flush()
