"""RocketMQ in Python: the clients are imported from here.

Servers are in `pyromq.nameserver` and `pyromq.broker`, a test cluster is in `pyromq.testing`. Names are loaded when
first used, so that `import pyromq` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pyromq.client.admin.async_admin import AsyncAdmin as AsyncAdmin
    from pyromq.client.admin.cluster_accounts import Rights as Rights
    from pyromq.client.admin.cluster_groups import GroupState as GroupState
    from pyromq.client.admin.cluster_offsets import QueueProgress as QueueProgress
    from pyromq.client.admin.cluster_topics import QueueStatus as QueueStatus
    from pyromq.client.admin.finding import Finding as Finding
    from pyromq.client.admin.members import TrackState as TrackState
    from pyromq.client.admin.messages.delayed_messages import DelayedMessage as DelayedMessage
    from pyromq.client.admin.messages.delayed_messages import DelayLevel as DelayLevel
    from pyromq.client.admin.messages.message_life import LifeEvent as LifeEvent
    from pyromq.client.admin.overviews import GroupOverview as GroupOverview
    from pyromq.client.admin.overviews import TopicOverview as TopicOverview
    from pyromq.client.admin.overviews import TopicRates as TopicRates
    from pyromq.client.admin.replica_sets import ReplicaSetAnswers as ReplicaSetAnswers
    from pyromq.client.admin.servers import RoundTrip as RoundTrip
    from pyromq.client.blocking.admin import Admin as Admin
    from pyromq.client.blocking.consumers import Consumer as Consumer
    from pyromq.client.blocking.consumers import PullConsumer as PullConsumer
    from pyromq.client.blocking.consumers import SimpleConsumer as SimpleConsumer
    from pyromq.client.blocking.producers import Attempt as Attempt
    from pyromq.client.blocking.producers import BatchTransactions as BatchTransactions
    from pyromq.client.blocking.producers import Producer as Producer
    from pyromq.client.blocking.producers import Stream as Stream
    from pyromq.client.blocking.producers import TransactionProducer as TransactionProducer
    from pyromq.client.client_config import ConsumeFrom as ConsumeFrom
    from pyromq.client.client_config import ConsumerConfig as ConsumerConfig
    from pyromq.client.client_config import Damaged as Damaged
    from pyromq.client.client_config import OffsetStore as OffsetStore
    from pyromq.client.client_config import ProducerConfig as ProducerConfig
    from pyromq.client.client_config import Strategy as Strategy
    from pyromq.client.client_hooks import CheckForbiddenHook as CheckForbiddenHook
    from pyromq.client.client_hooks import ConsumeMessageHook as ConsumeMessageHook
    from pyromq.client.client_hooks import ConsumeOutcome as ConsumeOutcome
    from pyromq.client.client_hooks import ConsumeStatus as ConsumeStatus
    from pyromq.client.client_hooks import Decision as Decision
    from pyromq.client.client_hooks import EndTransactionHook as EndTransactionHook
    from pyromq.client.client_hooks import FilterMessageHook as FilterMessageHook
    from pyromq.client.client_hooks import MessageDelivery as MessageDelivery
    from pyromq.client.client_hooks import MessageSend as MessageSend
    from pyromq.client.client_hooks import SendKind as SendKind
    from pyromq.client.client_hooks import SendMessageHook as SendMessageHook
    from pyromq.client.client_hooks import SendOutcome as SendOutcome
    from pyromq.client.client_hooks import TransactionEnd as TransactionEnd
    from pyromq.client.consumer.once import Once as Once
    from pyromq.client.consumer.pop.async_simple_consumer import AsyncSimpleConsumer as AsyncSimpleConsumer
    from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer as AsyncPullConsumer
    from pyromq.client.consumer.pull.subscribed_queues import QueueListener as QueueListener
    from pyromq.client.consumer.pulling import DamagedMessage as DamagedMessage
    from pyromq.client.consumer.pulling import MessageDamaged as MessageDamaged
    from pyromq.client.consumer.pulling import PullResult as PullResult
    from pyromq.client.consumer.pulling import PullStatus as PullStatus
    from pyromq.client.consumer.push.listener import Ack as Ack
    from pyromq.client.consumer.push.listener import GiveUp as GiveUp
    from pyromq.client.consumer.push.listener import Listener as Listener
    from pyromq.client.consumer.push.listener import RetryLater as RetryLater
    from pyromq.client.consumer.push.push_consumer import AsyncConsumer as AsyncConsumer
    from pyromq.client.producer.async_producer import AsyncProducer as AsyncProducer
    from pyromq.client.producer.batch_stream import Acknowledged as Acknowledged
    from pyromq.client.producer.batch_transactions import AsyncAttempt as AsyncAttempt
    from pyromq.client.producer.batch_transactions import AsyncBatchTransactions as AsyncBatchTransactions
    from pyromq.client.producer.batch_transactions import AttemptResult as AttemptResult
    from pyromq.client.producer.batch_transactions import BatchOutcome as BatchOutcome
    from pyromq.client.producer.batch_transactions import UndecidedAttempts as UndecidedAttempts
    from pyromq.client.producer.pending_send import OrderingKey as OrderingKey
    from pyromq.client.producer.pending_send import Selector as Selector
    from pyromq.client.producer.transaction_producer import AsyncTransactionProducer as AsyncTransactionProducer
    from pyromq.client.producer.transaction_producer import Check as Check
    from pyromq.client.producer.transaction_producer import Execute as Execute
    from pyromq.client.producer.transaction_producer import Transaction as Transaction
    from pyromq.client.producer.transaction_producer import TransactionResult as TransactionResult
    from pyromq.client.tracing.message_trace import MessageTrace as MessageTrace
    from pyromq.clock import Clock as Clock
    from pyromq.errors import AccessDenied as AccessDenied
    from pyromq.errors import AlreadyExists as AlreadyExists
    from pyromq.errors import AnotherServer as AnotherServer
    from pyromq.errors import BatchDecided as BatchDecided
    from pyromq.errors import BatchIncomplete as BatchIncomplete
    from pyromq.errors import BrokerError as BrokerError
    from pyromq.errors import CodeNotSupported as CodeNotSupported
    from pyromq.errors import ConnectionLost as ConnectionLost
    from pyromq.errors import ConsumerNotOnline as ConsumerNotOnline
    from pyromq.errors import ConsumeTimeout as ConsumeTimeout
    from pyromq.errors import DeadlineExceeded as DeadlineExceeded
    from pyromq.errors import FilterNotFound as FilterNotFound
    from pyromq.errors import FilterNotLatest as FilterNotLatest
    from pyromq.errors import FlowControl as FlowControl
    from pyromq.errors import FrameTooLarge as FrameTooLarge
    from pyromq.errors import GroupNotFound as GroupNotFound
    from pyromq.errors import HostNotFound as HostNotFound
    from pyromq.errors import IllegalMessage as IllegalMessage
    from pyromq.errors import IllegalName as IllegalName
    from pyromq.errors import InvalidReceiptHandle as InvalidReceiptHandle
    from pyromq.errors import LeaseGone as LeaseGone
    from pyromq.errors import LimitReached as LimitReached
    from pyromq.errors import MessageRefused as MessageRefused
    from pyromq.errors import MissingField as MissingField
    from pyromq.errors import MQError as MQError
    from pyromq.errors import NoNameServer as NoNameServer
    from pyromq.errors import NoPermission as NoPermission
    from pyromq.errors import NoReply as NoReply
    from pyromq.errors import NotRunning as NotRunning
    from pyromq.errors import NotTheMaster as NotTheMaster
    from pyromq.errors import PopsInFlight as PopsInFlight
    from pyromq.errors import ProtocolError as ProtocolError
    from pyromq.errors import QueryNotFound as QueryNotFound
    from pyromq.errors import RecallRefused as RecallRefused
    from pyromq.errors import ReceiptHandleExpired as ReceiptHandleExpired
    from pyromq.errors import RegistryRefused as RegistryRefused
    from pyromq.errors import RegistryUnavailable as RegistryUnavailable
    from pyromq.errors import ServiceNotAvailable as ServiceNotAvailable
    from pyromq.errors import SilentServer as SilentServer
    from pyromq.errors import StoreCorrupt as StoreCorrupt
    from pyromq.errors import StoreError as StoreError
    from pyromq.errors import StoreLocked as StoreLocked
    from pyromq.errors import StoreNotWritable as StoreNotWritable
    from pyromq.errors import StoreTooNew as StoreTooNew
    from pyromq.errors import SubscriptionNotFound as SubscriptionNotFound
    from pyromq.errors import SubscriptionNotLatest as SubscriptionNotLatest
    from pyromq.errors import SubscriptionParseFailed as SubscriptionParseFailed
    from pyromq.errors import SystemBusy as SystemBusy
    from pyromq.errors import TlsRefused as TlsRefused
    from pyromq.errors import TopicNotFound as TopicNotFound
    from pyromq.errors import Unavailable as Unavailable
    from pyromq.errors import UndecodableBody as UndecodableBody
    from pyromq.errors import UnfitBody as UnfitBody
    from pyromq.errors import UsageError as UsageError
    from pyromq.message import Message as Message
    from pyromq.message import MessageQueue as MessageQueue
    from pyromq.message import SendResult as SendResult
    from pyromq.message import SendStatus as SendStatus
    from pyromq.message import StoredMessage as StoredMessage
    from pyromq.message_id import UniqueIds as UniqueIds
    from pyromq.net.connection_config import ConnectionConfig as ConnectionConfig
    from pyromq.net.tls.tls_config import TlsConfig as TlsConfig
    from pyromq.remoting.bodies import AccountTable as AccountTable
    from pyromq.remoting.bodies import BrokerStats as BrokerStats
    from pyromq.remoting.bodies import ClusterTable as ClusterTable
    from pyromq.remoting.bodies import ConsumeDirectlyResult as ConsumeDirectlyResult
    from pyromq.remoting.bodies import ConsumerConnection as ConsumerConnection
    from pyromq.remoting.bodies import ConsumerRunning as ConsumerRunning
    from pyromq.remoting.bodies import ConsumeStatsList as ConsumeStatsList
    from pyromq.remoting.bodies import FiguresTable as FiguresTable
    from pyromq.remoting.bodies import GroupConfig as GroupConfig
    from pyromq.remoting.bodies import ProducerClient as ProducerClient
    from pyromq.remoting.bodies import ProducerConnection as ProducerConnection
    from pyromq.remoting.bodies import QueueEntriesBody as QueueEntriesBody
    from pyromq.remoting.bodies import ReplicaSetStatus as ReplicaSetStatus
    from pyromq.remoting.bodies import ReplicaState as ReplicaState
    from pyromq.remoting.bodies import TopicConfig as TopicConfig
    from pyromq.remoting.bodies import TopicRoute as TopicRoute
    from pyromq.remoting.command import Response as Response
    from pyromq.remoting.header import Header as Header
    from pyromq.remoting.headers import DeleteExpiredLogResponse as DeleteExpiredLogResponse
    from pyromq.remoting.hooks import RemotingHook as RemotingHook
    from pyromq.remoting.hooks import RemotingOutcome as RemotingOutcome
    from pyromq.remoting.hooks import RemotingRequest as RemotingRequest
    from pyromq.remoting.signer import Signer as Signer

_MODULES = {  # the public names of each module, separated by blanks
    "pyromq.client.admin.async_admin": "AsyncAdmin",
    "pyromq.client.admin.cluster_accounts": "Rights",
    "pyromq.client.admin.cluster_groups": "GroupState",
    "pyromq.client.admin.cluster_offsets": "QueueProgress",
    "pyromq.client.admin.cluster_topics": "QueueStatus",
    "pyromq.client.admin.finding": "Finding",
    "pyromq.client.admin.members": "TrackState",
    "pyromq.client.admin.messages.delayed_messages": "DelayLevel DelayedMessage",
    "pyromq.client.admin.messages.message_life": "LifeEvent",
    "pyromq.client.admin.overviews": "GroupOverview TopicOverview TopicRates",
    "pyromq.client.admin.replica_sets": "ReplicaSetAnswers",
    "pyromq.client.admin.servers": "RoundTrip",
    "pyromq.client.blocking.admin": "Admin",
    "pyromq.client.blocking.consumers": "Consumer PullConsumer SimpleConsumer",
    "pyromq.client.blocking.producers": "Attempt BatchTransactions Producer Stream TransactionProducer",
    "pyromq.client.client_config": "ConsumeFrom ConsumerConfig Damaged OffsetStore ProducerConfig Strategy",
    "pyromq.client.client_hooks": """
        CheckForbiddenHook ConsumeMessageHook ConsumeOutcome ConsumeStatus Decision EndTransactionHook
        FilterMessageHook MessageDelivery MessageSend SendKind SendMessageHook SendOutcome TransactionEnd
    """,
    "pyromq.client.consumer.pop.async_simple_consumer": "AsyncSimpleConsumer",
    "pyromq.client.consumer.pull.lite_pull_consumer": "AsyncPullConsumer",
    "pyromq.client.consumer.pull.subscribed_queues": "QueueListener",
    "pyromq.client.consumer.pulling": "DamagedMessage MessageDamaged PullResult PullStatus",
    "pyromq.client.consumer.once": "Once",
    "pyromq.client.consumer.push.listener": "Ack GiveUp Listener RetryLater",
    "pyromq.client.consumer.push.push_consumer": "AsyncConsumer",
    "pyromq.client.producer.async_producer": "AsyncProducer",
    "pyromq.client.producer.batch_stream": "Acknowledged",
    "pyromq.client.producer.batch_transactions": """
        AsyncAttempt AsyncBatchTransactions AttemptResult BatchOutcome UndecidedAttempts
    """,
    "pyromq.client.producer.pending_send": "OrderingKey Selector",
    "pyromq.client.producer.transaction_producer": """
        AsyncTransactionProducer Check Execute Transaction TransactionResult
    """,
    "pyromq.client.tracing.message_trace": "MessageTrace",
    "pyromq.clock": "Clock",
    "pyromq.errors": """
        AccessDenied AlreadyExists AnotherServer BatchDecided BatchIncomplete BrokerError CodeNotSupported
        ConnectionLost ConsumeTimeout ConsumerNotOnline DeadlineExceeded FilterNotFound FilterNotLatest
        FlowControl FrameTooLarge GroupNotFound HostNotFound IllegalMessage IllegalName InvalidReceiptHandle
        LeaseGone LimitReached MQError MessageRefused MissingField NoNameServer NoPermission NoReply NotRunning
        NotTheMaster PopsInFlight ProtocolError QueryNotFound RecallRefused ReceiptHandleExpired RegistryRefused
        RegistryUnavailable ServiceNotAvailable SilentServer StoreCorrupt StoreError StoreLocked
        StoreNotWritable StoreTooNew SubscriptionNotFound SubscriptionNotLatest SubscriptionParseFailed
        SystemBusy TlsRefused TopicNotFound Unavailable UndecodableBody UnfitBody UsageError
    """,
    "pyromq.message": "Message MessageQueue SendResult SendStatus StoredMessage",
    "pyromq.message_id": "UniqueIds",
    "pyromq.net.connection_config": "ConnectionConfig",
    "pyromq.net.tls.tls_config": "TlsConfig",
    "pyromq.remoting.bodies": """
        AccountTable BrokerStats ClusterTable ConsumeDirectlyResult ConsumeStatsList ConsumerConnection
        ConsumerRunning FiguresTable GroupConfig ProducerClient ProducerConnection QueueEntriesBody
        ReplicaSetStatus ReplicaState TopicConfig TopicRoute
    """,
    "pyromq.remoting.command": "Response",
    "pyromq.remoting.header": "Header",
    "pyromq.remoting.headers": "DeleteExpiredLogResponse",
    "pyromq.remoting.hooks": "RemotingHook RemotingOutcome RemotingRequest",
    "pyromq.remoting.signer": "Signer",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pyromq' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
