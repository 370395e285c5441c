"""Calls the method that answers a call of a RocketMQ 5 client, and turns errors into statuses."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from pyromq.errors import MQError
from pyromq.excerpt import excerpt
from pyromq.logs import logger_of
from pyromq.net.tasks import Tasks
from pyromq.proxy.body_check import check_bodies
from pyromq.proxy.cluster_access import ClusterAccess
from pyromq.proxy.grpc_refusal import GrpcRefusal, status_of
from pyromq.proxy.http2.grpc_status import GrpcCode
from pyromq.proxy.http2.grpc_stream import GrpcStream
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2
from pyromq.proxy.proto.service_pb2 import TelemetryCommand

logger = logger_of(__name__)

SERVICE = "/apache.rocketmq.v2.MessagingService/"
SEND = SERVICE + "SendMessage"
TELEMETRY = SERVICE + "Telemetry"
FAILURE = "the proxy failed; its log has the reason"
_FAILED = "call %s of %s failed"
MAX_ID_LENGTH = 255  # limit of a client id, as brokers have
HANDLED_AT_ONCE = 8  # messages or entries that are handled in one turn of the event loop: less than 1 ms
MAX_COMMANDS = 16  # limit of a client's telemetry commands that are handled at the same time
MAX_REQUEST_BYTES = 512 << 10  # limit of requests without bodies: a parsed request may take forty times its bytes


CallCounts = Counter[tuple[str, int]]  # number of answers by path, and status of RocketMQ or gRPC


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a call: its id, the access of its account, and the call's stream."""

    client_id: str
    access: ClusterAccess
    stream: GrpcStream
    counts: CallCounts

    def count(self, status: proto.Status) -> None:
        """Count the status of the answer."""
        self.counts[self.stream.path, status.code] += 1

    def reply(self, answer: Any) -> None:
        """Send the only answer, which has a field `status`."""
        self.count(answer.status)
        self.stream.reply(answer.SerializeToString())


# A method returns its answer, or returns None and sends the answer on the stream.
Answering = Callable[[Caller, Any], "Message | Awaitable[Message | None] | None"]
A = TypeVar("A", bound=Callable[..., Any])
T = TypeVar("T")


def answers_call(name: str) -> Callable[[A], A]:
    """Mark a method `(self, caller, request) -> response` as answering a unary call, for example `Heartbeat`."""

    def mark(method: A) -> A:
        method.answered_call = name  # type: ignore[attr-defined]  # a function takes any attribute
        return method

    return mark


async def in_turns(items: Iterable[T], *, at_once: int = HANDLED_AT_ONCE) -> AsyncIterator[T]:
    """Yield the items, and let the event loop serve other calls after every `at_once` items."""
    for number, item in enumerate(items, 1):
        yield item
        if number % at_once == 0:
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class UnaryMethod:
    """A method with one request and one response. A refusal is in the field `status` of the response."""

    request: type[Message]
    response: type[Message]
    answer: Answering


class Telemetry(Protocol):
    """Handles the Telemetry streams, on which clients send settings and the proxy sends commands."""

    async def handle(self, caller: Caller, command: TelemetryCommand) -> None:
        """Handle a client's command. Raises `MQError`, which ends the stream."""

    def ended(self, caller: Caller) -> None:
        """Note that the stream has ended."""


class GrpcDispatch:
    """Calls the method that answers a client's call.

    `access_of` returns the access of a caller's account, or raises a refusal. The methods of
    `services` that are marked with `answers_call` answer unary calls.
    """

    def __init__(
        self, access_of: Callable[[GrpcStream], ClusterAccess], services: Sequence[object], telemetry: Telemetry
    ) -> None:
        self._methods = {SERVICE + name: method for each in services for name, method in _methods_of(each)}
        self._telemetry = telemetry
        self.counts: CallCounts = Counter()
        self._access_of = access_of
        self._commands: dict[GrpcStream, int] = {}  # number of each stream's telemetry commands that are handled now
        self._tasks = Tasks()
        self.close = self._tasks.stop  # cancels the calls in work

    def opened(self, stream: GrpcStream) -> None:
        method = self._methods.get(stream.path)
        if stream.path != SEND:
            stream.max_bytes = MAX_REQUEST_BYTES
        if method is not None:
            stream.half_closed = partial(self._answer, method, stream)
        elif stream.path == TELEMETRY:
            self._open_telemetry(stream)
        else:
            self._fail(stream, GrpcCode.UNIMPLEMENTED, f"method {excerpt(stream.path, 100)} is not offered")

    def _answer(self, method: UnaryMethod, stream: GrpcStream) -> None:
        message, stream.message = stream.message, None
        if message is None:
            self._fail(stream, GrpcCode.INVALID_ARGUMENT, "the call has no request")
            return
        try:
            if len(message) > MAX_REQUEST_BYTES:
                check_bodies(message, MAX_REQUEST_BYTES)
            request = method.request.FromString(message)
        except DecodeError:
            self._fail(stream, GrpcCode.INVALID_ARGUMENT, f"the request is no {method.request.DESCRIPTOR.name}")
            return
        try:
            answer = method.answer(self._caller(stream), request)
        except MQError as error:
            self._reply(stream, method.response(status=status_of(error)))
        except Exception:
            logger.exception(_FAILED, stream.path, stream.peer)
            self._fail(stream, GrpcCode.INTERNAL, FAILURE)
        else:
            if isinstance(answer, Message):
                self._reply(stream, answer)
            elif answer is not None:
                task = self._tasks.start(self._answer_later(method, stream, answer), name=stream.path)
                stream.ended = partial(_cancel, task, answer)

    async def _answer_later(
        self, method: UnaryMethod, stream: GrpcStream, answering: Awaitable[Message | None]
    ) -> None:
        try:
            answer = await answering
        except MQError as error:
            answer = method.response(status=status_of(error))
        except Exception:
            logger.exception(_FAILED, stream.path, stream.peer)
            self._fail(stream, GrpcCode.INTERNAL, FAILURE)
            return
        if answer is not None:
            self._reply(stream, answer)

    def _open_telemetry(self, stream: GrpcStream) -> None:
        try:
            caller = self._caller(stream)
        except MQError as error:
            stream.send(TelemetryCommand(status=status_of(error)).SerializeToString())
            self._fail(stream, GrpcCode.INVALID_ARGUMENT, str(error))
            return
        stream.received = partial(self._receive_command, caller)
        stream.half_closed = partial(self._end_telemetry, caller)
        stream.ended = partial(self._telemetry.ended, caller)

    def _end_telemetry(self, caller: Caller) -> None:
        """Complete a stream that the client has half-closed. Clients fail if the server ends an open stream."""
        caller.stream.finish()
        self._telemetry.ended(caller)

    def _receive_command(self, caller: Caller, message: bytes) -> None:
        try:
            command = TelemetryCommand.FromString(message)
        except DecodeError:
            self._fail_telemetry(caller, GrpcCode.INVALID_ARGUMENT, "the message is not a TelemetryCommand")
            return
        handled = self._commands.get(caller.stream, 0)
        if handled >= MAX_COMMANDS:
            self._fail_telemetry(caller, GrpcCode.RESOURCE_EXHAUSTED, f"more than {MAX_COMMANDS} commands at once")
            return
        self._commands[caller.stream] = handled + 1
        self._tasks.start(self._handle_command(caller, command), name="telemetry")

    async def _handle_command(self, caller: Caller, command: TelemetryCommand) -> None:
        try:
            await self._telemetry.handle(caller, command)
        except MQError as error:
            self._fail_telemetry(caller, GrpcCode.INVALID_ARGUMENT, str(error))
        except Exception:
            logger.exception(_FAILED, caller.stream.path, caller.stream.peer)
            self._fail_telemetry(caller, GrpcCode.INTERNAL, FAILURE)
        finally:
            left = self._commands[caller.stream] = self._commands[caller.stream] - 1
            if not left:
                del self._commands[caller.stream]

    def _fail_telemetry(self, caller: Caller, code: GrpcCode, text: str) -> None:
        self._fail(caller.stream, code, text)
        self._telemetry.ended(caller)

    def _reply(self, stream: GrpcStream, answer: Any) -> None:
        self.counts[stream.path, answer.status.code] += 1
        stream.reply(answer.SerializeToString())

    def _fail(self, stream: GrpcStream, code: GrpcCode, text: str) -> None:
        is_known = stream.path in self._methods or stream.path == TELEMETRY
        self.counts[stream.path if is_known else "other", code] += 1
        stream.finish(code, text)

    def _caller(self, stream: GrpcStream) -> Caller:
        client_id = stream.text(b"x-mq-client-id")
        if not client_id.strip() or len(client_id) > MAX_ID_LENGTH or not client_id.isprintable():
            found = excerpt(client_id, 80)
            text = f"header x-mq-client-id is {found!r}; it must name the client, in at most 255 characters"
            raise GrpcRefusal(proto.CLIENT_ID_REQUIRED, text)
        return Caller(client_id, self._access_of(stream), stream, self.counts)


def _methods_of(service: object) -> Iterator[tuple[str, UnaryMethod]]:
    for found in vars(type(service)).values():
        if (name := getattr(found, "answered_call", None)) is not None:
            request, response = (getattr(service_pb2, name + kind) for kind in ("Request", "Response"))
            yield name, UnaryMethod(request, response, found.__get__(service))


def _cancel(task: asyncio.Task[None], answering: Awaitable[Message | None]) -> None:
    task.cancel()
    if inspect.iscoroutine(answering) and inspect.getcoroutinestate(answering) == inspect.CORO_CREATED:
        answering.close()  # the task is cancelled before its start and never awaits the coroutine
