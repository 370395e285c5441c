"""Checks undecided half messages with their producers, and gives up messages without a decision after all checks.

A round, once a minute, covers the half messages that are undecided at its start. A message is checked when its age
exceeds its immunity time. The check goes to a member of the message's producer group that may send to its topic and has
no unsent bytes. Messages of a group without such a member wait for a later round.
Source: RocketMQ 4.9.8, TransactionalMessageServiceImpl.check and AbstractTransactionalMessageCheckListener.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from pyromq.broker.cold_reads import Fetching
from pyromq.broker.members.connections import GroupMember
from pyromq.broker.shared_state import SharedState
from pyromq.broker.transactions.half_messages import Half, half_copy, real_queue
from pyromq.errors import MessageRefused, StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage
from pyromq.names import TRANSACTION_GIVE_UP_TOPIC
from pyromq.net.tasks import Alarm
from pyromq.permissions.account import PUB
from pyromq.record import encode
from pyromq.remoting.dispatch import Peer
from pyromq.remoting.headers import CheckTransaction
from pyromq.store.disk import readable

logger = logger_of(__name__)

SLICE = 50  # limit of half messages checked in one step, which blocks the event loop for about 3 ms
SLICE_SECONDS = 0.003  # longest time of one step; large messages reach it before `SLICE`
READING_SECONDS = 1.0  # a member that has left its last check unread for longer is skipped
READING_PAUSE = 0.01  # seconds between two steps if all members left are still reading their last checks
MAX_TRIED = 32  # limit of members of a group that are tried for one half message in one step
LONGEST_WAIT = 1.0  # longest wait for a record to be loaded (seconds); the alarm usually fires earlier
LONGEST_MS = 72 * 3_600_000  # age (ms) at which checks of a half message end: RocketMQ deletes it (fileReservedTime)
Action = Callable[[Half, StoredMessage], bool]


class TransactionChecks:
    """The rounds of checks of undecided half messages of one broker.

    `step` returns the seconds until its next call; `alarm` fires if the call must come earlier.
    """

    def __init__(self, state: SharedState) -> None:
        self.alarm = Alarm(state.clock)
        self._store = state.store
        self._fetching = Fetching(state.cold_reads, self.alarm)
        self._half_messages = state.half_messages
        self._topics = state.topics
        self._connections = state.connections
        self._permissions = state.permissions
        self._config = state.config
        self._clock = state.clock
        self._round: deque[int] = deque()  # queue offsets of half messages left in this round
        self._next_round = state.clock.monotonic() + state.config.transaction_check_interval_ms / 1000
        self._asked = 0  # index at which the search for a member of a group begins
        self._members: dict[str, list[GroupMember]] = {}  # producer group -> members, valid during one step
        # Time (monotonic s) of the last check sent to each member in this round.
        self._pushed_at: dict[Peer, float] = {}

    @readable()
    def step(self) -> float:
        """Check some half messages of the round; return the seconds until the next call.

        Raises `StoreNotWritable`, and `StoreError` if a file cannot be read; the next call resumes at the same message.
        """
        if self._fetching.is_under_way:
            return LONGEST_WAIT
        now = self._clock.monotonic()
        if not self._round and now >= self._next_round:
            self._next_round = now + self._config.transaction_check_interval_ms / 1000
            self._round.extend(self._half_messages.undecided())
            self._pushed_at.clear()
        self._members.clear()
        is_waiting = False
        for _ in range(min(SLICE, len(self._round))):
            half = self._half_messages.at(self._round[0])
            act = None if half is None else self._due_act(half)
            if half is not None and act is not None:
                if act != self._wait and self._fetching.lacks(self._store.residency.record_to_load(half.log_offset)):
                    return LONGEST_WAIT
                if act == self._wait or not self._try(half, act):
                    is_waiting = True
                    self._round.rotate(-1)
                    continue
            self._round.popleft()  # after the action: a message whose outcome could not be stored is checked again
            if self._clock.monotonic() >= now + SLICE_SECONDS:
                break
        if not self._round:
            return max(0.0, self._next_round - now)
        return READING_PAUSE if is_waiting else 0.0

    def _try(self, half: Half, act: Action) -> bool:
        """Run an action on a half message; return False if the action must be tried again in this round."""
        try:
            record = self._store.message_at(half.log_offset)
            if record is not None:
                return act(half, record)
            self._lose(half, "the log no longer has it")
        except StoreCorrupt as error:
            self._lose(half, str(error))
        except MessageRefused as error:
            logger.warning("the half message at log offset %d cannot be checked: %s", half.log_offset, error)
        return True

    def _lose(self, half: Half, why: str) -> None:
        """Settle a half message whose record is unreadable, as a restart would.

        Otherwise retention would keep the log forever.
        """
        self._half_messages.settle(half)
        logger.error("the half message at log offset %d, of group %s, is lost: %s", half.log_offset, half.group, why)

    def _due_act(self, half: Half) -> Action | None:
        """Return the action that a half message needs now: give up, check, wait or move; None for no action."""
        age_ms = self._clock.now_ms() - half.born_ms
        immune_ms = self._config.transaction_timeout_ms if half.immune_ms is None else half.immune_ms
        if half.checks >= self._config.transaction_check_max or age_ms > LONGEST_MS:
            return self._give_up
        if age_ms > immune_ms or age_ms < 0:  # below 0: the producer's clock is ahead, the true age unknown
            member = self._member(half.group)
            if member is not None:
                return self._ask if member.session.takes_pushes else self._wait
        return self._move if self._half_messages.holds_back(half) else None

    def _member(self, group: str, topic: str | None = None) -> GroupMember | None:
        """Return a member of a producer group that may send to `topic`, if given; None if there is no such member.

        Each call returns another member. A member that accepts pushes now comes before a member that is still reading
        its last checks.
        """
        members = self._members.get(group)
        if members is None:
            members = self._members[group] = self._connections.producers(group)
        reading = None
        now = self._clock.monotonic()
        for number in range(self._asked, self._asked + min(len(members), MAX_TRIED)):
            member = members[number % len(members)]
            takes = member.session.takes_pushes
            if not takes and now - self._pushed_at.get(member.session, -READING_SECONDS) >= READING_SECONDS:
                continue
            if topic is None or self._permissions.lacks(member.account, [(topic, PUB)]) is None:
                if takes:
                    return member
                reading = reading or member
        if reading is None:
            self._asked += MAX_TRIED
        return reading

    def _wait(self, half: Half, record: StoredMessage) -> bool:
        return False

    def _move(self, half: Half, record: StoredMessage) -> bool:
        """Append a copy of the half message, without counting a check, so that progress can pass the old copy."""
        self._half_messages.renew(half, record, checks=0)
        return True

    def _ask(self, half: Half, record: StoredMessage) -> bool:
        topic, queue_id = real_queue(record)
        member = self._member(half.group, topic)
        if member is None:
            return True
        producer = member.session
        if not producer.takes_pushes:
            return False
        copy = self._half_messages.renew(half, record)
        unique_key = copy.properties.get(Property.UNIQUE_KEY)
        header = CheckTransaction(
            half_queue_offset=copy.queue_offset,
            log_offset=copy.log_offset,
            message_id=unique_key,
            transaction_id=unique_key,
            offset_message_id=copy.offset_message_id,
        )
        copy.topic, copy.queue_id = topic, queue_id
        # A decision on a copy that a failover cuts off could meet another half message at the same offsets.
        self._store.when_confirmed(partial(producer.notify, header, encode(copy)))
        self._pushed_at[producer] = self._clock.monotonic()
        self._asked += 1
        return True

    def _give_up(self, half: Half, record: StoredMessage) -> bool:
        """Move the half message to the topic of given-up messages, where administrators find it."""
        topic = self._topics.for_group_retry(TRANSACTION_GIVE_UP_TOPIC, 1).name
        self._half_messages.settle(half, half_copy(record, checks=half.checks, topic=topic))
        logger.warning(
            "producer group %s did not decide on the half message born at %d: given up after %d checks, see topic %s",
            half.group,
            half.born_ms,
            half.checks,
            TRANSACTION_GIVE_UP_TOPIC,
        )
        return True
