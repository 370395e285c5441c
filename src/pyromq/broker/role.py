"""The role of a broker, master or not, among the brokers of its name, and the requests that other brokers refuse.

The role changes while the broker runs. No I/O here.
"""

from __future__ import annotations

from collections.abc import Callable

from pyromq.broker.config import BrokerConfig
from pyromq.errors import BrokerError, NotTheMaster, ResponseCode, ServiceNotAvailable
from pyromq.net.address_server import parse_addresses
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.header import Header
from pyromq.remoting.headers import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    CleanTopics,
    CommitBatch,
    CreateTopic,
    DeleteAccount,
    DeleteGroup,
    DeleteTopic,
    EndTransaction,
    FindBatch,
    LockQueues,
    Notification,
    PopMessage,
    RecallMessage,
    ResumeHalfMessage,
    RollBackBatch,
    SaveAccount,
    SaveBrokerSettings,
    SaveGroup,
    SaveWhiteList,
    SendBatchMessage,
    SendHalfRun,
    SendMessage,
    SendMessageBack,
    SendReplyMessage,
    SetMessageRequestMode,
    UnlockQueues,
    UpdateConsumerOffset,
)

MASTER = 0  # broker id of a master


class BrokerRole:
    """The role of one broker among the brokers of its name.

    A broker with `number` 0 can only be a master. Any other broker is registered under its number while it is not the
    master. `epoch` counts the masters of a replica set; 0 outside of replica sets. `listen` adds functions that are
    called after each change. A replica of a set gets its `number` before it is registered.
    """

    def __init__(self, number: int = MASTER, *, is_master: bool | None = None, epoch: int = 0) -> None:
        self.is_master = number == MASTER if is_master is None else is_master
        self.epoch = epoch
        self.master_address: str | None = None  # address of the other broker that is master; None: this one, or unknown
        self.ha_address: str | None = None  # address at which the master sends its log to slaves; None: unknown
        self.log_needed_from = 0  # first log offset that the master has; this broker's retention keeps it, too
        self.fence = ""  # reason why another replica may have replaced this master; "" if it may act as master
        self.number = number
        self._listeners: list[Callable[[], None]] = []

    @property
    def broker_id(self) -> int:
        """The id under which the broker is registered now: 0 for a master."""
        return MASTER if self.is_master else self.number

    def listen(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def lead(self, epoch: int = 0) -> None:
        """Make this broker the master. Called by `Broker.promote`, once the broker can store messages."""
        self.is_master, self.epoch = True, epoch
        self.master_address = self.ha_address = None
        self._changed()

    def step_down(self, master_address: str | None = None, epoch: int = 0) -> None:
        """Refuse writes from now on: another broker is the master. The broker must be closed soon.

        Raises `ValueError` for a broker with number 0.
        """
        if self.number == MASTER:
            raise ValueError("a broker with number 0 can only be a master")
        self.is_master, self.epoch = False, max(epoch, self.epoch)
        self.master_address, self.ha_address = master_address, None
        self._changed()

    def follow(self, master_address: str | None, ha_address: str | None, epoch: int = 0) -> None:
        """Store the addresses of the master, None if there is no master. Does nothing if this broker is the master."""
        epoch = max(epoch, self.epoch)
        if not self.is_master and (master_address, ha_address, epoch) != (
            self.master_address,
            self.ha_address,
            self.epoch,
        ):
            self.master_address, self.ha_address, self.epoch = master_address, ha_address, epoch
            self._changed()

    def raise_fence(self, reason: str) -> None:
        """Stop acting as master until the reason is "". The reason says why another replica may have been elected."""
        if reason != self.fence:
            self.fence = reason
            self._changed()

    def serve_slaves_at(self, ha_address: str | None) -> None:
        """Store the address at which this broker, the master, sends its log to slaves; None if it no longer does."""
        self.ha_address = ha_address
        self._changed()

    def not_the_master(self) -> NotTheMaster:
        """Return the error that refuses a write, with the master's address if one is known."""
        return NotTheMaster(self.master_address)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


def configured_role(config: BrokerConfig) -> BrokerRole:
    """Return the role with which a broker starts."""
    role = BrokerRole(config.broker_id)
    if config.ha_master is not None:
        role.follow(request_address(config.ha_master), config.ha_master)
    return role


def request_address(ha_address: str) -> str:
    """Return the address for requests that belongs to a HA address, if both ports have RocketMQ's usual distance."""
    (address,) = parse_addresses(ha_address)
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 1}"


class WriteRefusals:
    """Refuses the requests that only a master answers, with the codes of RocketMQ's slaves.

    Source: RocketMQ 4.9.8, DefaultMessageStore.checkStoreStatus, EndTransactionProcessor, AdminBrokerProcessor.
    """

    def __init__(self, role: BrokerRole) -> None:
        self._role = role

    @answers(
        *(SendMessage, SendBatchMessage, SendMessageBack, SendReplyMessage),
        *(ResumeHalfMessage, SendHalfRun, CommitBatch, RollBackBatch, FindBatch),
        *(PopMessage, AckMessage, BatchAckMessage, ChangeInvisibleTime, Notification),
    )
    def refuse(self, header: Header, call: Call) -> Reply:
        raise self._role.not_the_master()

    @answers(EndTransaction, RecallMessage)
    def refuse_decision(self, header: Header, call: Call) -> Reply:
        raise NotTheMaster(self._role.master_address, ResponseCode.SLAVE_NOT_AVAILABLE)

    @answers(CreateTopic, DeleteTopic, CleanTopics, SaveGroup, DeleteGroup, SetMessageRequestMode)
    def refuse_change(self, header: Header, call: Call) -> Reply:
        raise BrokerError(f"topics and groups change at the master only; {self._role.not_the_master()}")


class FenceRefusals:
    """Refuses offset commits and acknowledgements at a master that another replica may have replaced.

    The new master would not know what this master accepted.
    """

    def __init__(self, role: BrokerRole) -> None:
        self._role = role

    @answers(UpdateConsumerOffset, PopMessage, AckMessage, BatchAckMessage, ChangeInvisibleTime)
    def refuse_commit(self, header: Header, call: Call) -> Reply:
        raise ServiceNotAvailable(self._role.fence)


class SetRefusals:
    """Refuses changes of locks, settings and accounts at a follower of a replica set. RocketMQ's slaves accept them.

    A follower copies these tables from the master, so a change at a follower would be lost.
    """

    def __init__(self, role: BrokerRole) -> None:
        self._role = role

    @answers(LockQueues, UnlockQueues, SaveBrokerSettings, SaveAccount, DeleteAccount, SaveWhiteList)
    def refuse_at_follower(self, header: Header, call: Call) -> Reply:
        raise self._role.not_the_master()
