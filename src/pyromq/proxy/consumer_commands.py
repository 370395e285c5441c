"""Sends administrators' commands, which a broker relays, to a consumer on its Telemetry stream.

The commands request a thread dump, or let the consumer's listener consume one message.
Source: RocketMQ 5.3.3, ProxyClientRemotingProcessor, ClientActivity.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import Future

from msgspec import structs

from pyromq.errors import BrokerError
from pyromq.excerpt import excerpt
from pyromq.proxy.client_table import GrpcClient
from pyromq.proxy.cluster_access import ClusterAccess, consumer_entry
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.received_messages import fill_message
from pyromq.record import decode
from pyromq.remoting.bodies import ConsumeDirectlyResult, ConsumerRunning
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import ConsumeDirectly, ConsumerRunningState
from pyromq.remoting.json_quirks import encode_body

MAX_PENDING_COMMANDS = 16  # limit of a client's unanswered commands; the oldest is dropped

_RESULTS = {
    proto.OK: "CR_SUCCESS",
    proto.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    proto.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}


class ConsumerCommands:
    """Answers the requests that a broker relays to a consumer. If the consumer is silent, the request times out."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    @answers(ConsumerRunningState)
    def running_state(self, header: ConsumerRunningState, call: Call) -> Reply | Future[Reply]:
        """Reply with the consumer's subscriptions and, on request, with its thread dump."""
        client = self._client(header.client_id)
        running = ConsumerRunning(
            properties={"PROP_CONSUME_TYPE": "CONSUME_POP", "PROP_CLIENT_VERSION": "RocketMQ 5, gRPC"},
            subscriptions=consumer_entry(client).subscriptions,
        )
        if not header.stack_wanted:
            return Reply(body=encode_body(running))
        command = service.TelemetryCommand()
        nonce = command.print_thread_stack_trace_command.nonce = secrets.token_hex(8)

        def reply(answer: service.TelemetryCommand) -> Reply:
            stack = answer.thread_stack_trace.thread_stack_trace
            return Reply(body=encode_body(structs.replace(running, stack=stack)))

        return _ask(client, nonce, command, reply)

    @answers(ConsumeDirectly)
    def consume(self, header: ConsumeDirectly, call: Call) -> Future[Reply]:
        """Let the consumer's listener consume the message whose record is the body, and reply with the result."""
        client = self._client(header.client_id or "")
        message = decode(call.body)
        command = service.TelemetryCommand()
        nonce = command.verify_message_command.nonce = secrets.token_hex(8)
        fill_message(command.verify_message_command.message, message, message.topic)
        begun = self._access.clock.monotonic()

        def reply(answer: service.TelemetryCommand) -> Reply:
            result = ConsumeDirectlyResult(
                result=_RESULTS.get(answer.status.code, "CR_THROW_EXCEPTION"),
                remark=excerpt(answer.status.message, 1000) or None,
                spent_ms=int((self._access.clock.monotonic() - begun) * 1000),
            )
            return Reply(body=encode_body(result))

        return _ask(client, nonce, command, reply)

    def _client(self, client_id: str) -> GrpcClient:
        client = self._access.clients.find(client_id)
        if client is None or not client.takes_commands:
            text = f"client {excerpt(client_id, 100)!r} reads no Telemetry stream at this proxy; ask again in a minute"
            raise BrokerError(text)
        return client


def _ask(
    client: GrpcClient,
    nonce: str,
    command: service.TelemetryCommand,
    reply: Callable[[service.TelemetryCommand], Reply],
) -> Future[Reply]:
    assert client.stream is not None
    replied: Future[Reply] = Future()
    if len(client.pending_commands) >= MAX_PENDING_COMMANDS:
        client.pending_commands.pop(next(iter(client.pending_commands)))
    client.pending_commands[nonce] = lambda answer: replied.set_result(reply(answer))
    client.stream.send(command.SerializeToString())
    return replied
