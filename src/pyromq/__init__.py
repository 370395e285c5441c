"""RocketMQ in Python: clients here; servers in `pyromq.nameserver` and `pyromq.broker`, a test cluster in
`pyromq.testing`. Names are loaded when first used, so that `import pyromq` costs next to nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pyromq.client.admin.admin import AsyncAdmin as AsyncAdmin
    from pyromq.client.blocking.admin import Admin as Admin
    from pyromq.client.blocking.batch_transactions import BatchTransactions as BatchTransactions
    from pyromq.client.blocking.producer import Producer as Producer
    from pyromq.client.blocking.pull_consumer import PullConsumer as PullConsumer
    from pyromq.client.blocking.push_consumer import Consumer as Consumer
    from pyromq.client.blocking.transactions import TransactionProducer as TransactionProducer
    from pyromq.client.config import ConsumeFrom as ConsumeFrom
    from pyromq.client.config import ConsumerConfig as ConsumerConfig
    from pyromq.client.config import Damaged as Damaged
    from pyromq.client.config import ProducerConfig as ProducerConfig
    from pyromq.client.consumer.damage import DamagedMessage as DamagedMessage
    from pyromq.client.consumer.damage import MessageDamaged as MessageDamaged
    from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer as AsyncPullConsumer
    from pyromq.client.consumer.pulling import PullResult as PullResult
    from pyromq.client.consumer.pulling import PullStatus as PullStatus
    from pyromq.client.consumer.push.listener import Ack as Ack
    from pyromq.client.consumer.push.listener import GiveUp as GiveUp
    from pyromq.client.consumer.push.listener import RetryLater as RetryLater
    from pyromq.client.consumer.push.push_consumer import AsyncConsumer as AsyncConsumer
    from pyromq.client.decision import Decision as Decision
    from pyromq.client.hooks import CheckForbiddenHook as CheckForbiddenHook
    from pyromq.client.hooks import ConsumeMessageHook as ConsumeMessageHook
    from pyromq.client.hooks import ConsumeOutcome as ConsumeOutcome
    from pyromq.client.hooks import ConsumeStatus as ConsumeStatus
    from pyromq.client.hooks import EndTransactionHook as EndTransactionHook
    from pyromq.client.hooks import FilterMessageHook as FilterMessageHook
    from pyromq.client.hooks import MessageDelivery as MessageDelivery
    from pyromq.client.hooks import MessageSend as MessageSend
    from pyromq.client.hooks import SendKind as SendKind
    from pyromq.client.hooks import SendMessageHook as SendMessageHook
    from pyromq.client.hooks import SendOutcome as SendOutcome
    from pyromq.client.hooks import TransactionEnd as TransactionEnd
    from pyromq.client.offset_store import OffsetStore as OffsetStore
    from pyromq.client.producer.batch_transactions import AsyncBatchTransactions as AsyncBatchTransactions
    from pyromq.client.producer.producer import AsyncProducer as AsyncProducer
    from pyromq.client.producer.transaction_producer import AsyncTransactionProducer as AsyncTransactionProducer
    from pyromq.client.producer.transaction_producer import Transaction as Transaction
    from pyromq.client.producer.transaction_producer import TransactionResult as TransactionResult
    from pyromq.client.tracing.message_trace import MessageTrace as MessageTrace
    from pyromq.errors import AlreadyExists as AlreadyExists
    from pyromq.errors import BatchDecided as BatchDecided
    from pyromq.errors import BatchIncomplete as BatchIncomplete
    from pyromq.errors import BrokerError as BrokerError
    from pyromq.errors import DeadlineExceeded as DeadlineExceeded
    from pyromq.errors import IllegalMessage as IllegalMessage
    from pyromq.errors import IllegalName as IllegalName
    from pyromq.errors import MessageRefused as MessageRefused
    from pyromq.errors import MQError as MQError
    from pyromq.errors import NoNameServer as NoNameServer
    from pyromq.errors import NoReply as NoReply
    from pyromq.errors import NotRunning as NotRunning
    from pyromq.errors import ProtocolError as ProtocolError
    from pyromq.errors import RecallRefused as RecallRefused
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
    from pyromq.net.connection_config import ConnectionConfig as ConnectionConfig
    from pyromq.net.tls.config import TlsConfig as TlsConfig
    from pyromq.remoting.hooks import RemotingHook as RemotingHook
    from pyromq.remoting.hooks import RemotingOutcome as RemotingOutcome
    from pyromq.remoting.hooks import RemotingRequest as RemotingRequest

_MODULES = {
    "pyromq.client.admin.admin": ("AsyncAdmin",),
    "pyromq.client.producer.batch_transactions": ("AsyncBatchTransactions",),
    "pyromq.client.blocking.admin": ("Admin",),
    "pyromq.client.blocking.producer": ("Producer",),
    "pyromq.client.blocking.batch_transactions": ("BatchTransactions",),
    "pyromq.client.blocking.push_consumer": ("Consumer",),
    "pyromq.client.blocking.pull_consumer": ("PullConsumer",),
    "pyromq.client.blocking.transactions": ("TransactionProducer",),
    "pyromq.client.config": ("ConsumeFrom", "ConsumerConfig", "Damaged", "ProducerConfig"),
    "pyromq.client.consumer.push.push_consumer": ("AsyncConsumer",),
    "pyromq.client.consumer.damage": ("DamagedMessage", "MessageDamaged"),
    "pyromq.client.consumer.push.listener": ("Ack", "GiveUp", "RetryLater"),
    "pyromq.client.hooks": (
        "ConsumeMessageHook",
        "ConsumeOutcome",
        "ConsumeStatus",
        "EndTransactionHook",
        "MessageDelivery",
        "MessageSend",
        "SendKind",
        "CheckForbiddenHook",
        "FilterMessageHook",
        "SendMessageHook",
        "SendOutcome",
        "TransactionEnd",
    ),
    "pyromq.client.decision": ("Decision",),
    "pyromq.client.offset_store": ("OffsetStore",),
    "pyromq.client.tracing.message_trace": ("MessageTrace",),
    "pyromq.client.producer.producer": ("AsyncProducer",),
    "pyromq.client.consumer.pull.lite_pull_consumer": ("AsyncPullConsumer",),
    "pyromq.client.consumer.pulling": ("PullResult", "PullStatus"),
    "pyromq.client.producer.transaction_producer": (
        "AsyncTransactionProducer",
        "Transaction",
        "TransactionResult",
    ),
    "pyromq.errors": (
        "AlreadyExists",
        "BatchDecided",
        "BatchIncomplete",
        "BrokerError",
        "DeadlineExceeded",
        "IllegalMessage",
        "IllegalName",
        "MessageRefused",
        "MQError",
        "NoNameServer",
        "NoReply",
        "NotRunning",
        "ProtocolError",
        "RecallRefused",
        "TopicNotFound",
        "Unavailable",
        "UndecodableBody",
        "UnfitBody",
        "UsageError",
    ),
    "pyromq.message": ("Message", "MessageQueue", "SendResult", "SendStatus", "StoredMessage"),
    "pyromq.net.connection_config": ("ConnectionConfig",),
    "pyromq.net.tls.config": ("TlsConfig",),
    "pyromq.remoting.hooks": ("RemotingHook", "RemotingOutcome", "RemotingRequest"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pyromq' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
