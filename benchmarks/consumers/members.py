"""Consumers in processes of their own, ours and the genuine Java one, and what they said about themselves and when.

Knows how members are started and ended; what their lines mean for a measurement is not known here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from servers import cpu_seconds, pinned

MEMBER_CORE = 1
HERE = Path(__file__).parent
SAY_SECONDS = 90.0  # longer than the genuine broker keeps the locks of a killed client


@dataclass(frozen=True, slots=True)
class Role:
    """What a member is to do, as `member.py` explains; `in_task` is for ours only."""

    mode: str
    topic: str
    group: str
    orderly: bool = False
    in_task: bool = False
    batch: int = 1
    work_ms: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a member: its first word, its time in seconds where it has one, and its other words."""

    kind: str
    at: float
    words: tuple[str, ...]


class Member:
    """A running consumer."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.lines: list[Line] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, is_there: Callable[[list[Line]], bool], what: str, seconds: float = SAY_SECONDS) -> None:
        """Wait until the lines are as wished. Raises `SystemExit` when that takes too long, naming `what`."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_there(self.lines), seconds):
                raise SystemExit(f"a member says no {what!r} within {seconds:g} s; its last words: {self.lines[-5:]}")

    def first(self, kind: str) -> float:
        """Return the time of the first such line; waits for it."""
        self.wait(lambda lines: any(line.kind == kind for line in lines), kind)
        return next(line.at for line in self.lines if line.kind == kind)

    def ask(self) -> Line:
        """Send an empty line; return the next line that comes."""
        before = len(self.lines)
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.wait(lambda lines: len(lines) > before, "answer")
        return self.lines[before]

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)

    def leave(self) -> float:
        """End it cleanly; return when it began to close."""
        self._process.terminate()
        self._end()
        return self.first("closing")

    def kill(self) -> float:
        """End it by SIGKILL; return when."""
        at = time.monotonic()
        self._process.kill()
        self._end()
        return at

    def _end(self) -> None:
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            kind, *words = text.split()
            at = int(words.pop(0)) / 1e9 if kind != "own" else 0.0
            with self._changed:
                self.lines.append(Line(kind, at, tuple(words)))
                self._changed.notify_all()


StartMember = Callable[[str, Role], contextlib.AbstractContextManager[Member]]


@contextlib.contextmanager
def our_member(namesrv: str, role: Role, environment: Mapping[str, str] | None = None) -> Iterator[Member]:
    """`environment` is added to ours, as with servers."""
    options = ["--batch", str(role.batch), "--work-ms", str(role.work_ms)]
    options += ["--orderly"] * role.orderly + ["--async"] * role.in_task
    command = [sys.executable, str(HERE / "member.py"), role.mode, namesrv, role.topic, role.group, *options]
    yield from _run(command, environment)


def java_member(jars: Path, classes: Path) -> StartMember:
    """The Java client from the jars of a folder; `classes` is an empty folder for what is compiled."""
    path = f"{classes}:{jars}/*"
    source = str(HERE / "java" / "Member.java")
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", str(classes), source], check=True)

    @contextlib.contextmanager
    def start(namesrv: str, role: Role) -> Iterator[Member]:
        kind = "orderly" if role.orderly else "concurrent"
        command = [
            "java",
            "-Xmx1g",
            f"-Duser.home={classes}",
            "-Drocketmq.client.logLevel=ERROR",
            "-cp",
            path,
            "Member",
        ]
        arguments = [role.mode, namesrv, role.topic, role.group, kind, str(role.batch), str(role.work_ms)]
        yield from _run([*command, *arguments])

    return start


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> Iterator[Member]:
    member = Member([*pinned(MEMBER_CORE), *command], environment or {})
    try:
        yield member
    finally:
        member.kill()
