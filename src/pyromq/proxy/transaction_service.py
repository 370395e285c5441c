"""Answers EndTransaction, and passes brokers' checks of half messages to a producer of the topic.

A cluster may have several proxies. Each proxy registers its producers' topics as producer groups.
"""

from __future__ import annotations

from pyromq.client.client_hooks import Decision
from pyromq.client.cluster.known_masters import MASTER
from pyromq.errors import AccessDenied, BrokerError, StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, Property
from pyromq.proxy.cluster_access import TIMEOUT_SECONDS, ClusterAccess
from pyromq.proxy.grpc_dispatch import Caller, answers_call
from pyromq.proxy.grpc_refusal import GrpcRefusal, ok
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.received_messages import fill_message
from pyromq.proxy.sent_messages import check_topic_name
from pyromq.proxy.transaction_ids import TransactionId, parse_transaction_id
from pyromq.record import decode
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import CheckTransaction, ConsumerIdsChanged, EndTransaction

logger = logger_of(__name__)

_DECISIONS = {proto.COMMIT: Decision.COMMIT, proto.ROLLBACK: Decision.ROLLBACK}


class TransactionService:
    """Answers EndTransaction: commits or rolls back half messages at their brokers."""

    @answers_call("EndTransaction")
    async def end(self, caller: Caller, request: service.EndTransactionRequest) -> service.EndTransactionResponse:
        """Commit or roll back a half message. An unspecified resolution leaves it undecided."""
        topic = request.topic.name
        check_topic_name(topic)
        place = parse_transaction_id(request.transaction_id)
        decision = _DECISIONS.get(request.resolution)
        if decision is None:
            return service.EndTransactionResponse(status=ok())
        route = await caller.access.route(topic)
        if place.broker_name not in route.addresses:
            text = f"transaction id {request.transaction_id!r}: topic {topic!r} has no broker {place.broker_name!r}"
            raise GrpcRefusal(proto.INVALID_TRANSACTION_ID, text)
        order = EndTransaction(
            producer_group=topic,
            half_queue_offset=place.queue_offset,
            log_offset=place.log_offset,
            decision=decision.value,
            message_id=request.message_id,
            from_check=request.source == proto.SOURCE_SERVER_CHECK,
            transaction_id=request.message_id,
            broker_name=place.broker_name,
        )
        queue = MessageQueue(topic, place.broker_name, 0)
        response = await caller.access.cluster.ask_master(queue, order, timeout=TIMEOUT_SECONDS, idempotent=True)
        try:
            response.check()
        except AccessDenied:
            raise
        except BrokerError as error:
            text = f"transaction {request.transaction_id!r} is already decided, or cannot be decided: {error}"
            raise GrpcRefusal(proto.INVALID_TRANSACTION_ID, text) from error
        return service.EndTransactionResponse(status=ok())


class BrokerRequests:
    """Passes brokers' checks of half messages to a producer of the topic.

    If no producer is connected, the broker checks again later.
    """

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    @answers(CheckTransaction)
    def check(self, header: CheckTransaction, call: Call) -> Reply:
        """Send the half message to a producer, which answers by EndTransaction."""
        try:
            message = decode(call.body)
        except StoreCorrupt as error:
            logger.warning("a check request of broker %s cannot be read: %s", call.peer.address, error)
            return Reply()
        topic = message.properties.get(Property.REAL_TOPIC, message.topic)
        client = self._access.clients.producer_of(topic)
        broker = self._broker_at(call.peer.address)
        if client is None or client.stream is None or broker is None:
            logger.info("no producer of topic %s is connected to decide on half message %s", topic, message.message_id)
            return Reply()
        message.topic = topic
        place = TransactionId(broker, header.log_offset, header.half_queue_offset)
        command = service.TelemetryCommand()
        command.recover_orphaned_transaction_command.transaction_id = place.encode()
        fill_message(command.recover_orphaned_transaction_command.message, message, topic)
        client.stream.send(command.SerializeToString())
        return Reply()

    @answers(ConsumerIdsChanged)
    def members_changed(self, header: ConsumerIdsChanged, call: Call) -> Reply:
        """Do nothing: members of RocketMQ 5 share queues without a rebalance."""
        return Reply()

    def _broker_at(self, address: str) -> str | None:
        for route in self._access.cluster.routes.known.values():
            for name, by_id in route.addresses.items():
                if by_id.get(MASTER) == address:
                    return name
        return None
