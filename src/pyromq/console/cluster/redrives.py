"""Running and finished redrives of dead letters: tasks that outlive the request that began them, and their outcomes.

Redrives are in memory: a redrive ends with the console, and the next redrive skips the messages that were sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import count

from pyromq.client.admin.messages.dead_letters import (
    AsyncDeadLetters,
    DeadLetterFilter,
    Fate,
    Redriven,
    RedriveOrder,
)
from pyromq.clock import Clock
from pyromq.console.security.console_audit_log import DONE, FAILED, AuditEntry, ConsoleAuditLog
from pyromq.errors import MQError, UsageError
from pyromq.message import MessageQueue

MAX_RUNS = 50  # limit of redrives in memory; beyond the limit the oldest finished redrive is dropped
MAX_AT_ONCE = 8
MAX_OUTCOMES = 10_000  # limit of outcomes that one redrive keeps in memory; all outcomes are counted


@dataclass(frozen=True, slots=True)
class RedriveOutcome:
    """The outcome of a redrive for one dead letter.

    `place` is the queue and offset of the dead letter, `copy` that of its copy.
    """

    message_id: str
    keys: str
    place: tuple[MessageQueue, int]
    fate: Fate
    origin: str
    destination: str
    copy: tuple[MessageQueue, int] | None
    error: str

    @classmethod
    def of(cls, redriven: Redriven) -> RedriveOutcome:
        letter, message = redriven.letter, redriven.letter.message
        copy = None
        if redriven.queue is not None and redriven.queue_offset is not None:
            copy = redriven.queue, redriven.queue_offset
        return cls(
            message.message_id,
            " ".join(message.keys),
            (message.queue, message.queue_offset),
            redriven.fate,
            letter.original_topic or "",
            redriven.destination or "",
            copy,
            str(redriven.error or ""),
        )


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """A requested redrive: the console account, the fields of the form (`choice`), and the browser's address."""

    group: str
    wanted: DeadLetterFilter
    order: RedriveOrder
    account: str
    address: str
    choice: Mapping[str, str]


@dataclass(slots=True)
class RedriveRun:
    """One running or finished redrive. `error` is the reason for an early end, else ""."""

    id: str
    asked: RedriveRequest
    began_ms: int
    ended_ms: int | None = None
    error: str = ""
    is_stopped: bool = False  # a stopped redrive ends after the current message
    fates: Counter[Fate] = field(default_factory=Counter)
    outcomes: list[RedriveOutcome] = field(default_factory=list)

    @property
    def group(self) -> str:
        return self.asked.group

    @property
    def summary(self) -> str:
        """The counts of outcomes in words, for example `12 sent, 1 failed`."""
        return ", ".join(f"{number} {fate.value}" for fate, number in self.fates.items()) or "nothing sent"


class Redrives:
    """All redrives of this console. `close` stops the running ones."""

    def __init__(self, clock: Clock, audit: ConsoleAuditLog) -> None:
        self._clock = clock
        self._audit = audit
        self._runs: dict[str, RedriveRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._numbers = count(1)

    def begin(self, dead_letters: AsyncDeadLetters, asked: RedriveRequest) -> RedriveRun:
        """Start a redrive; the audit log records its beginning and end. Raises `UsageError` if too many are running."""
        if len(self._tasks) >= MAX_AT_ONCE:
            raise UsageError(f"{MAX_AT_ONCE} redrives are in progress already; wait for one, or stop it")
        run = RedriveRun(str(next(self._numbers)), asked, self._clock.now_ms())
        details = {"group": asked.group, **asked.choice, "redrive": run.id}
        noted = self._audit.asked("redrive", account=asked.account, address=asked.address, details=details)
        self._runs[run.id] = run
        ended = [each for each in self._runs.values() if each.ended_ms is not None]
        for each in ended[: max(0, len(self._runs) - MAX_RUNS)]:
            del self._runs[each.id]
        task = asyncio.create_task(self._run(run, dead_letters, noted), name=f"redrive {run.id}")
        self._tasks[run.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run.id, None))
        return run

    def find(self, run_id: str) -> RedriveRun | None:
        return self._runs.get(run_id)

    def of(self, group: str) -> list[RedriveRun]:
        """Return the redrives of a group, latest first."""
        return [each for each in self._runs.values() if each.group == group][::-1]

    def copies(self) -> dict[tuple[MessageQueue, int], tuple[MessageQueue, int]]:
        """Return the place of each known copy by the place of its dead letter."""
        outcomes = [each for run in self._runs.values() for each in run.outcomes]
        return {each.place: each.copy for each in outcomes if each.copy is not None}

    def topics(self, group: str) -> set[str]:
        """Return the topics, other than the original ones, that got copies of a group's dead letters.

        The audit log names the topics, also after a restart.
        """
        asked = (each.details for each in self._audit.recent() if each.what == "redrive")
        return {each["to_topic"] for each in asked if each.get("group") == group and each.get("to") == "topic"}

    async def wait(self, run: RedriveRun, seconds: float) -> None:
        """Wait until a redrive has ended, at most for these seconds."""
        if (task := self._tasks.get(run.id)) is not None:
            await asyncio.wait([task], timeout=seconds)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, run: RedriveRun, dead_letters: AsyncDeadLetters, noted: AuditEntry) -> None:
        asked = run.asked
        try:
            async with aclosing(dead_letters.redrive(asked.group, asked.wanted, asked.order)) as outcomes:
                async for each in outcomes:
                    run.fates[each.fate] += 1
                    if len(run.outcomes) < MAX_OUTCOMES:
                        run.outcomes.append(RedriveOutcome.of(each))
                    if run.is_stopped:
                        run.error = "it was stopped"
                        break
        except MQError as error:
            run.error = str(error)
        except BaseException as error:
            run.error = "the console ended" if isinstance(error, asyncio.CancelledError) else repr(error)
            raise
        finally:
            run.ended_ms = self._clock.now_ms()
            if run.error or run.fates[Fate.FAILED]:
                error_text = run.error or f"{run.fates[Fate.FAILED]} could not be sent"
                self._audit.ended(noted, FAILED, error=error_text, result=run.summary)
            else:
                self._audit.ended(noted, DONE, result=run.summary)
