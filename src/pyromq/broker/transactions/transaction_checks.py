"""Asks producers what became of half messages that stay undecided, and gives up on those nobody decides.

A round a minute looks at each message that was undecided when it began. A message is asked about when it is older than
its time of immunity. Any member of its producer group is asked that may send to its topic, and has read what it was
asked before. Messages of a group without such members wait for a later round.
Source: RocketMQ 4.9.8, TransactionalMessageServiceImpl.check and AbstractTransactionalMessageCheckListener.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pyromq.broker.cold_reads import ColdReads, Fetching
from pyromq.broker.config import BrokerConfig
from pyromq.broker.members.connections import Connections, Member
from pyromq.broker.topics import Topics
from pyromq.broker.transactions.half_messages import Half, HalfMessages, half_copy, real_queue
from pyromq.clock import Clock
from pyromq.errors import MessageRefused, StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import Property
from pyromq.names import TRANSACTION_GIVE_UP_TOPIC
from pyromq.net.alarm import Alarm
from pyromq.permissions.account import PUB
from pyromq.permissions.permissions import Permissions
from pyromq.record import encode
from pyromq.remoting.headers import CheckTransaction
from pyromq.remoting.remoting_session import RemotingSession
from pyromq.store.disk import readable
from pyromq.store.message_store import MessageStore

logger = logger_of(__name__)

SLICE = 50  # messages looked at before others get their turn: about 3 ms,
SLICE_SECONDS = 0.003  # and no longer where they are large
READING_SECONDS = 1.0  # for a member to read what it was asked, before it counts as one that does not read
READING_PAUSE = 0.01  # seconds, while that is waited for
MOST_TRIED = 32  # members of a group for one message in one round
LONGEST_WAIT = 1.0  # seconds, for what comes from the disk: the alarm rings when it is there
LONGEST_MS = 72 * 3_600_000  # undecided for longer: given up (fileReservedTime, when upstream's log has lost it)
_GONE = "no record begins there any more"


class TransactionChecks:
    """The rounds of one broker. `step` says when it wants to run next; `alarm` rings when it has to earlier."""

    def __init__(
        self,
        store: MessageStore,
        half_messages: HalfMessages,
        *,
        topics: Topics,
        connections: Connections,
        cold_reads: ColdReads,
        permissions: Permissions,
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self.alarm = Alarm(clock)
        self._store = store
        self._fetching = Fetching(cold_reads, self.alarm)
        self._half_messages = half_messages
        self._topics = topics
        self._connections = connections
        self._permissions = permissions
        self._config = config
        self._clock = clock
        self._round: deque[int] = deque()  # queue offsets still to look at
        self._next_round = clock.monotonic() + config.transaction_check_interval_ms / 1000
        self._asked = 0  # where the search for a member begins
        self._members: dict[str, list[Member]] = {}  # by group, in the present step
        self._pushed_at: dict[RemotingSession, float] = {}  # when members were last asked, in this round

    @readable()
    def step(self) -> float:
        """Look at some messages of the round; return in how many seconds there is more to do.

        Raises `StoreNotWritable`, and `StoreError` where a file cannot be read; then it goes on with that message.
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
                if act != self._wait and self._fetching.lacks(self._store.residency.unread_record(half.log_offset)):
                    return LONGEST_WAIT
                if not self._try(half, act):
                    is_waiting = True
                    self._round.rotate(-1)
                    continue
            self._round.popleft()  # only now: what could not be stored is looked at again
            if self._clock.monotonic() >= now + SLICE_SECONDS:
                break
        if not self._round:
            return max(0.0, self._next_round - now)
        return READING_PAUSE if is_waiting else 0.0

    def _try(self, half: Half, act: Callable[[Half], bool]) -> bool:
        """Do what is due; False where that has to be tried again in this round."""
        try:
            return act(half)
        except StoreCorrupt as error:
            self._lose(half, str(error))
        except MessageRefused as error:
            logger.warning("the half message at %d cannot be checked: %s", half.log_offset, error)
        return True

    def _lose(self, half: Half, why: str) -> None:
        """Settle a message that nobody can decide on any more, as a restart would: else the log is kept for it."""
        self._half_messages.settle(half)
        logger.error("the half message at log offset %d, of group %s, is lost: %s", half.log_offset, half.group, why)

    def _due_act(self, half: Half) -> Callable[[Half], bool] | None:
        """Return what is to be done with a message now, None: nothing."""
        age_ms = self._clock.now_ms() - half.born_ms
        immune_ms = self._config.transaction_timeout_ms if half.immune_ms is None else half.immune_ms
        if half.checks >= self._config.transaction_check_max or age_ms > LONGEST_MS:
            return self._give_up
        if age_ms > immune_ms or age_ms < 0:  # below 0: the producer's clock is ahead, its age says nothing
            member = self._member(half.group)
            return None if member is None else self._ask if member.session.takes_pushes else self._wait
        return None

    def _member(self, group: str, topic: str | None = None) -> Member | None:
        """Return a member that may send to the topic, where one is named; another one each time.

        One that takes more now, else one that is still reading; None without such.
        """
        members = self._members.get(group)
        if members is None:
            members = self._members[group] = self._connections.producers(group)
        reading = None
        now = self._clock.monotonic()
        for number in range(self._asked, self._asked + min(len(members), MOST_TRIED)):
            member = members[number % len(members)]
            takes = member.session.takes_pushes
            if not takes and now - self._pushed_at.get(member.session, -READING_SECONDS) >= READING_SECONDS:
                continue
            if topic is None or self._permissions.lacks(member.account, [(topic, PUB)]) is None:
                if takes:
                    return member
                reading = reading or member
        if reading is None:
            self._asked += MOST_TRIED
        return reading

    def _wait(self, _: Half) -> bool:
        return False

    def _ask(self, half: Half) -> bool:
        record = self._store.message_at(half.log_offset)
        if record is None:
            self._lose(half, _GONE)
            return True
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
        producer.notify(header, encode(copy))
        self._pushed_at[producer] = self._clock.monotonic()
        self._asked += 1
        return True

    def _give_up(self, half: Half) -> bool:
        """Put the message where an administrator finds it."""
        record = self._store.message_at(half.log_offset)
        if record is None:
            self._lose(half, _GONE)
            return True
        topic = self._topics.for_group_retry(TRANSACTION_GIVE_UP_TOPIC, 1).name
        self._half_messages.settle(half, half_copy(record, checks=half.checks, topic=topic))
        logger.warning(
            "nobody of group %s decided on the half message born at %d: given up after %d checks, see topic %s",
            half.group,
            half.born_ms,
            half.checks,
            TRANSACTION_GIVE_UP_TOPIC,
        )
        return True
