"""Decides which rights a request needs: an administrator's, rights on topics and groups, or only a signature.

The table is upstream's, with some stricter rules that clients of 4.9 do not notice. A request that no list
names needs an administrator. Source: RocketMQ 4.9.8, PlainAccessValidator.parse, Permission.ADMIN_CODE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyromq import speedups
from pyromq.broker.batches.half_batches import Undecided, batch_needs
from pyromq.errors import DENIED, AccessDenied, MQError, StoreError
from pyromq.message import Property, StoredMessage
from pyromq.names import NOT_FOR_CLIENTS, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX, TRACE_TOPIC, pop_retry_topic, retry_topic
from pyromq.permissions.account import ANY, PUB, SUB, Account, Need, resource_name, right_name
from pyromq.permissions.authentication import REFUSED, Authentication, denied
from pyromq.permissions.permissions import Permissions
from pyromq.remoting import headers
from pyromq.remoting.bodies import REQUEST, AssignmentQuery, BatchAcks, HeartbeatBody, QueueLock, decode_body
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import Call
from pyromq.remoting.header import Header, request_headers
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.slow_work import NotInMemory
from pyromq.store.message_store import MessageStore

UndecidedBy = Callable[[str], Undecided | None]  # name of a batch transaction -> its undecided state, or None

TopicAt = Callable[[int], str | None]  # log offset -> topic of the record there, or None

# Topic name returned for bytes that look like a record but are none, for example inside the body of a message.
NO_QUEUE = f"{SYSTEM_TOPIC_PREFIX}no_queue"

# Requests that need an administrator: upstream's list, and all others that change something or show secrets.
FOR_ADMINISTRATORS = (
    headers.CreateTopic,
    headers.DeleteTopic,
    headers.SaveBrokerSettings,
    headers.SaveGroup,
    headers.DeleteGroup,
    headers.SetMessageRequestMode,
    # From SaveAccount to ResumeHalfMessage: stricter than upstream, which needs only a signature.
    headers.SaveAccount,
    headers.DeleteAccount,
    headers.SaveWhiteList,
    headers.ListAccounts,
    headers.CleanQueues,
    headers.CleanTopics,
    headers.CloneGroupOffset,
    headers.ConsumeDirectly,
    headers.DeleteExpiredLog,
    headers.ResetOffset,
    headers.ResumeHalfMessage,
    headers.HandOver,
    headers.AcceptLoss,
)

# Requests that any account may send. Such requests change nothing and return no content of messages: only names,
# settings and numbers. Lists of producers (204, 328), half messages (100323) and batch transactions (100334) contain
# only the entries on which the account has rights.
FOR_EVERY_ACCOUNT = (
    headers.AccountsVersion,
    headers.AllConsumerOffsets,
    headers.AllDelayOffsets,
    headers.AllGroups,
    headers.AllProducers,
    headers.AllTopics,
    headers.BrokerConsumeStatistics,
    headers.BrokerFigures,
    headers.BrokerSettings,
    headers.BrokerState,
    headers.BrokerStatistics,
    headers.BrokerSystemTopics,
    headers.CheckClient,
    headers.ConsumeStatistics,
    headers.ConsumeTimeSpan,
    headers.CorrectionOffsets,
    headers.CountTimers,
    headers.EarliestStoreTime,
    headers.FindBatch,
    headers.ListBatches,
    headers.ListHalfMessages,
    headers.MaxOffset,
    headers.MinOffset,
    headers.ProducerConnections,
    headers.QueryConsumerOffset,
    headers.ReplicaSetState,
    headers.SearchOffset,
    headers.TopicConsumers,
    headers.TopicSettings,
    headers.TopicStatistics,
)


class Rules:
    """Computes the rights that a call needs.

    `reply_topic` is the topic of request-reply replies, which needs no right.
    """

    def __init__(self, topic_at: TopicAt, reply_topic: str, undecided: UndecidedBy = lambda _: None) -> None:
        self._topic_at = topic_at
        self._undecided = undecided
        self._reply_topic = reply_topic
        self._by_header: dict[type[Header], Callable[[Any, Call], list[Need]]] = {
            headers.SendMessage: lambda header, _: [_publish(header.topic)],
            # Requests of batch transactions: not in RocketMQ 4.9.
            headers.SendHalfRun: lambda header, call: [_publish(header.topic), *self._batch(header.transaction, call)],
            headers.CommitBatch: lambda header, call: self._batch(header.transaction, call),
            headers.RollBackBatch: lambda header, call: self._batch(header.transaction, call),
            headers.RecallMessage: lambda header, _: [_publish(header.topic)],  # not in RocketMQ
            headers.SendReplyMessage: lambda header, _: self._reply(header),
            headers.PullMessage: lambda header, _: [(header.topic, SUB), _group(header.consumer_group)],
            headers.PopMessage: lambda header, _: [(header.topic, SUB), _group(header.consumer_group)],
            headers.Notification: lambda header, _: [(header.topic, SUB), _group(header.consumer_group)],
            headers.PollingInfo: lambda header, _: [(header.topic, SUB), _group(header.consumer_group)],
            headers.AckMessage: lambda header, _: _popped(header.consumer_group, header.topic),
            headers.ChangeInvisibleTime: lambda header, _: _popped(header.consumer_group, header.topic),
            headers.BatchAckMessage: lambda _, call: [
                need
                for ack in decode_body(BatchAcks, call.body, REQUEST).acks
                for need in [(ack.topic, SUB), _group(ack.group)]
            ],
            headers.QueryAssignment: lambda _, call: _assigned(decode_body(AssignmentQuery, call.body, REQUEST)),
            headers.QueryMessage: lambda header, _: [(header.topic, SUB)],
            headers.ListTimers: lambda header, _: [(header.topic, ANY)],
            headers.UpdateConsumerOffset: lambda header, _: [_group(header.consumer_group), (header.topic, SUB)],
            headers.ConsumerList: lambda header, _: [_group(header.consumer_group)],
            headers.UnregisterClient: lambda header, _: (
                [_group(header.consumer_group)] if header.consumer_group else []
            ),
            headers.Heartbeat: lambda _, call: _subscribed(decode_body(HeartbeatBody, call.body, REQUEST)),
            # From ConsumerConnections to UnlockQueues: stricter than upstream, which needs only a signature.
            headers.ConsumerConnections: lambda header, _: [_group(header.consumer_group)],
            headers.ConsumerRunningState: lambda header, _: [_group(header.consumer_group)],
            headers.ConsumerStatusOfGroup: lambda header, _: [_group(header.group), (header.topic, SUB)],
            headers.QueueEntries: lambda header, _: [
                (header.topic, SUB),
                *([_group(header.consumer_group)] if header.consumer_group else []),
            ],
            headers.LockQueues: lambda _, call: [_group(decode_body(QueueLock, call.body, REQUEST).group)],
            headers.UnlockQueues: lambda _, call: [_group(decode_body(QueueLock, call.body, REQUEST).group)],
            # Stricter than upstream: the message's topic needs a right. Upstream lets an account read any message.
            headers.SendMessageBack: lambda header, _: [_group(header.group), *self._at(header.offset, SUB)],
            headers.ViewMessage: lambda header, _: self._at(header.offset, SUB),
            headers.EndTransaction: lambda header, _: self._at(header.log_offset, PUB),
        }
        self._by_code = {
            code: rule
            for code, header in request_headers().items()
            for declared, rule in self._by_header.items()
            if issubclass(header, declared)
        }

    def needs(self, call: Call) -> list[Need]:
        """Return the rights that a call needs; [] if a signature is enough.

        Raises `ProtocolError` if the request's body cannot be read, `NotInMemory` if a record must first be loaded.
        """
        rule = self._by_code.get(call.code)
        return rule(call.header, call) if rule is not None else []

    def has_rule(self, code: int) -> bool:
        """Return whether the rights for a request code depend on the names (topics, groups) in the request."""
        return code in self._by_code

    def _reply(self, header: headers.SendReplyMessage) -> list[Need]:
        """Return no rights for a reply sent to the broker's reply topic.

        Stricter than upstream: a reply that is stored in another topic needs PUB on this topic.
        """
        return [] if header.topic == self._reply_topic else [_publish(header.topic)]

    def _batch(self, transaction: str, call: Call) -> list[Need]:
        """Return [] for the account that began the batch transaction, or if the transaction is not undecided.

        Other accounts need rights on the transaction's topics.
        """
        undecided = self._undecided(transaction)
        if undecided is None or undecided.owner == call.account:
            return []
        return batch_needs(undecided)

    def _at(self, log_offset: int, right: int) -> list[Need]:
        topic = self._topic_at(log_offset)
        if topic is None:
            return []
        return [(topic, SUB if topic.startswith(RETRY_PREFIX) else right)]


def needs_administrator(code: int, rules: Rules) -> bool:
    """Return whether a request code needs an administrator: no rule and no list of open requests names it."""
    return not rules.has_rule(code) and code not in _OPEN


def is_trace(needs: list[Need]) -> bool:
    """Return whether the rights are for sending message traces, which every account may send."""
    return (TRACE_TOPIC, PUB) in needs


_OPEN = {code for code, header in request_headers().items() if issubclass(header, FOR_EVERY_ACCOUNT)}


def _publish(topic: str) -> Need:
    """Return the right to send to a topic.

    Stricter than upstream: a retry topic needs SUB on the topic itself; upstream checks the group.
    """
    return (topic, SUB) if topic.startswith(RETRY_PREFIX) else (topic, PUB)


def _group(group: str) -> Need:
    return retry_topic(group), SUB


def _subscribed(heartbeat: HeartbeatBody) -> list[Need]:
    needs = []
    for consumer in heartbeat.consumers:
        needs.append(_group(consumer.group))
        needs += [(subscription.topic, SUB) for subscription in consumer.subscriptions]
    return needs


class PermissionGuard:
    """Checks the signature and rights of every request, if permissions are on."""

    reads_fields = True
    is_compiled = speedups.is_active  # compiled handlers check permissions themselves, with `fast_acl_of`

    def __init__(self, permissions: Permissions, rules: Rules, refusals: RejectionLog) -> None:
        self._authentication = Authentication(permissions)
        self._rules = rules
        self._refusals = refusals

    def judge(self, call: Call) -> MQError | None:
        """Return the error that refuses the call; None if the call is allowed.

        Raises `NotInMemory` if a record must be loaded.
        """
        try:
            self.check(call)
        except AccessDenied as error:
            reason = str(error).removeprefix(DENIED)
            self._refusals.note(REFUSED, call.peer.address, "%s is refused: %s", call.peer.address, reason)
            return error
        except MQError as error:  # the body cannot be decoded
            return error
        return None

    def check(self, call: Call) -> None:
        """Set `call.account`; raise `AccessDenied`, naming account, right and resource, if the call is not allowed."""
        account = self._authentication.account_of(call)
        call.account = None if account is None else account.access_key
        if account is not None:
            self._check_rights(account, call)

    def _check_rights(self, account: Account, call: Call) -> None:
        if not account.admin and needs_administrator(call.code, self._rules):
            request = RequestCode(call.code).name
            raise denied(
                f"account {account.access_key} is not an administrator, which request {call.code} ({request}) needs"
            )
        needs = self._rules.needs(call)
        if not needs or is_trace(needs):
            return
        lacking = account.lacks(needs)
        if lacking is not None:
            resource, right = lacking
            owned = right_name(account.right_on(resource))
            wanted = right_name(right)
            raise denied(f"account {account.access_key} needs {wanted} on {resource_name(resource)} and has {owned}")


def topic_at(store: MessageStore, log_offset: int) -> str | None:
    """Return the topic that a client named for the message at a log offset; None if no record begins at that offset.

    Returns `NO_QUEUE`, on which only administrators have rights, for a record that no queue entry points to. Raises
    `NotInMemory` if the record must first be loaded.
    """
    store.residency.need_record(log_offset)
    try:
        message = store.message_at(log_offset, check_crc=False)
    except StoreError:  # a record begins at this log offset but is unreadable
        return NO_QUEUE
    if message is None:
        return None
    if not _is_queued(message, store):
        return NO_QUEUE
    if message.topic in NOT_FOR_CLIENTS:
        return message.properties.get(Property.REAL_TOPIC, message.topic)
    return message.topic


def _is_queued(message: StoredMessage, store: MessageStore) -> bool:
    """Return whether the queue entry that a message names points to this message. Raises `NotInMemory`."""
    place = store.reading.place(message.topic, message.queue_id, message.queue_offset)
    if place is None:
        return False
    queue, queue_offset = place
    if to_load := queue.entry_to_load(queue_offset):
        raise NotInMemory(to_load)
    return store.reading.log_offset_of(place) == message.log_offset


def _popped(group: str, topic: str) -> list[Need]:
    """Return the rights to acknowledge a message of a topic, which may be out of the pop retry topic."""
    return [(topic.removeprefix(pop_retry_topic(group, "")), SUB), _group(group)]


def _assigned(query: AssignmentQuery) -> list[Need]:
    return [(query.topic, SUB), _group(query.group)]
