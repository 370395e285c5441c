"""What becomes of a folder that a kill left: a broker goes on with it, and every promise given before must be kept."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pyromq.broker.broker import Broker
from pyromq.message import StoredMessage
from pyromq.testing import FakeClock

from .batches import TOKENS, TOPIC
from .clients import COMMIT, QUEUES, ROLLBACK, History, Kind, Producer
from .disk import restore
from .life import CHECKS, Moment, Recorder, broker_at

ALL_IS_DUE_SECONDS = 6 * 3600.0
NEVER = 1e12
OFTEN = {"transaction_timeout_ms": 10, "transaction_check_interval_ms": 50}


class Afterlife:
    """`faults` are the promises broken; `moments` those at which this broker may be killed again."""

    def __init__(self, history: History, moment: Moment) -> None:
        self.faults: list[str] = []
        self.moments: list[Moment] = []
        self._history = history
        self._moment = moment

    async def run(self, folder: Path, *, every: float = NEVER) -> None:
        """Start a broker, let it ask about what is undecided, and let all time pass."""
        restore(self._moment.image, folder)
        clock, step = FakeClock(self._moment.now_ms), self._moment.step
        recorder = Recorder(folder, every=every, chance=random.Random(step), clock=clock)
        recorder.step = lambda: step
        with recorder.disk.watched():
            recorder.disk.armed = every < NEVER
            async with broker_at(folder, clock, **OFTEN) as broker:
                await clock.advance(0)
                self._look(broker, at_last=False)
                await self._let_pass(broker, clock)
                self._look(broker, at_last=True)
                recorder.disk.armed = False
        self.moments = recorder.moments

    async def _let_pass(self, broker: Broker, clock: FakeClock) -> None:
        producer = await Producer.connect(broker.address, self._history, clock)
        try:
            await self._take_back(producer)
            await self._commit_again(producer)
            for seconds in [0.06] * (CHECKS + 2):
                await clock.advance(seconds)
                await producer.answered_all()
            clock.jump(ALL_IS_DUE_SECONDS)
            for _ in range(2):
                await clock.advance(1.1)
                await producer.answered_all()
        finally:
            await producer.close()

    async def _take_back(self, producer: Producer) -> None:
        """Decide otherwise on everything whose decision was confirmed: that must be refused."""
        for sent in self._history.sent.values():
            if self._is_past(sent.decided):
                response = await producer.ask(sent.end(ROLLBACK if sent.wanted == COMMIT else COMMIT))
                if response.code == 0:
                    self.faults.append(f"{sent.key}: decided twice")

    async def _commit_again(self, producer: Producer) -> None:
        """Repeat the commits that were not confirmed; where one was, commit the other attempt, which must not win."""
        for batch in self._history.batches:
            if self._is_past(batch.begun):
                loser = TOKENS[TOKENS[0] == batch.winner]
                token = loser if self._is_past(batch.committed) else batch.winner
                if not batch.is_won(response := await producer.ask(*batch.commit(token))):
                    self.faults.append(f"{batch}: {response.code} {response.remark} {response.body!r}")

    def _look(self, broker: Broker, *, at_last: bool) -> None:
        """Note what is broken; `at_last`: what has not come by now is lost."""
        messages = list(visible(broker))
        seen = Counter(message.body.decode() for message in messages)
        self.faults += [f"{key}: nobody sent it" for key in seen if not self._is_begun(key)]
        for key, sent in self._history.sent.items():
            if self._is_begun(key):
                least, most = self._bounds(key)
                if not (least if at_last else 0) <= seen[key] <= most:
                    self.faults.append(f"{key}: there {seen[key]} times, not {least} to {most}; {sent}")
        for message in messages:
            early_ms = self._history.sent[message.body.decode()].due_ms - message.store_ms
            if early_ms > 0:
                self.faults.append(f"{message.body.decode()}: {early_ms} ms early")
        if at_last:
            waiting = [*broker.half_messages.undecided(), *broker.timers.index.pending]
            self.faults += [f"{what} waits for ever" for what in waiting]

    def _is_past(self, step: int | None) -> bool:
        return step is not None and step <= self._moment.step

    def _is_begun(self, key: str) -> bool:
        return self._is_past(self._history.sent[key].begun)

    def _bounds(self, key: str) -> tuple[int, int]:
        """How often a message must be there in the end, at least and at most."""
        sent = self._history.sent[key]
        if (sent.kind is Kind.HALF and sent.wanted != COMMIT) or self._is_past(sent.cancelled):
            return 0, 0
        if sent.batch is not None:
            count = int(self._is_past(sent.batch.begun) and sent.batch.winner == sent.token)
            return count, count
        least = int(self._is_past(sent.confirmed) and not self._is_past(sent.cancel_begun))
        return least, 1


def visible(broker: Broker) -> Iterator[StoredMessage]:
    """Yield what consumers can see."""
    store = broker.store
    for queue_id in range(QUEUES):
        for entry in store.entries(TOPIC, queue_id, 0, store.max_offset(TOPIC, queue_id)):
            message = store.message_at(entry.log_offset)
            assert message is not None
            yield message
