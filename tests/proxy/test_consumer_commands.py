"""Operators' questions about consumers of RocketMQ 5: thread dumps, and messages that their listeners take at once."""

import asyncio

import grpc
import hpack
import pytest
from tests.proxy.calls import PREFIX, message, subscription
from tests.proxy.http2.peer import HEADERS, grpc_message, raw_frame
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import BrokerError, MQError
from pyromq.proxy.consumer_commands import MAX_PENDING_COMMANDS
from pyromq.proxy.http2 import frames
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service

CLIENT = "host@1@0@a"


@pytest.fixture
async def admin(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders")
    return admin


@pytest.fixture
async def stream(calls, admin):
    stream, _ = await calls.settings(subscription("billing", "orders", proto.PUSH_CONSUMER))
    for _ in range(200):
        try:
            if (await admin.consumer_connection("billing")).connections:
                return stream
        except MQError:  # the proxy has not registered the client yet
            await asyncio.sleep(0.005)
    raise AssertionError("the client is not a member of its group")


async def test_a_consumers_subscriptions_are_shown(admin, stream):
    state = await admin.members.running("billing", CLIENT)

    assert [(each.topic, each.expression) for each in state.subscriptions] == [("orders", "*")]
    assert state.stack is None


async def test_a_consumers_thread_dump_is_shown(admin, stream):
    asking = asyncio.ensure_future(admin.members.running("billing", CLIENT, stacks=True))
    nonce = (await stream.read()).print_thread_stack_trace_command.nonce
    dump = service.ThreadStackTrace(nonce=nonce, thread_stack_trace="MainThread\n  at work")
    await stream.write(service.TelemetryCommand(thread_stack_trace=dump))

    assert (await asking).stack == "MainThread\n  at work"


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (proto.OK, "CR_SUCCESS"),
        (proto.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (proto.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
        (proto.NOT_IMPLEMENTED, "CR_THROW_EXCEPTION"),
    ],
)
async def test_a_consumers_listener_takes_a_message(admin, calls, stream, code, result):
    await calls.send(message(body=b"again", tag="paid"))

    asking = asyncio.ensure_future(admin.members.consume("billing", CLIENT, "01A", topic="orders"))
    asked = (await stream.read()).verify_message_command
    answer = service.VerifyMessageResult(nonce=asked.nonce)
    status = proto.Status(code=code, message="as the listener says")
    await stream.write(service.TelemetryCommand(status=status, verify_message_result=answer))

    found = await asking
    assert (found.result, found.remark) == (result, "as the listener says")
    assert (asked.message.body, asked.message.system_properties.tag) == (b"again", "paid")


async def test_answers_to_no_question_are_ignored(admin, stream):
    for nonce in ("", "unknown"):
        await stream.write(service.TelemetryCommand(thread_stack_trace=service.ThreadStackTrace(nonce=nonce)))

    assert (await admin.members.running("billing", CLIENT)).subscriptions


async def test_questions_without_answers_are_dropped(admin, proxy, stream):
    asking = [
        asyncio.ensure_future(admin.members.running("billing", CLIENT, stacks=True))
        for _ in range(MAX_PENDING_COMMANDS + 5)
    ]
    for _ in asking:
        await stream.read()

    (client,) = proxy._accounts.clients()
    assert len(client.pending_commands) == MAX_PENDING_COMMANDS
    for each in asking:
        each.cancel()


async def test_a_client_whose_stream_has_ended_cannot_be_asked(admin, stream):
    await stream.done_writing()
    await stream.read()

    with pytest.raises(BrokerError, match="Telemetry"):
        await admin.members.running("billing", CLIENT)


REFUSED = {
    "settings of neither producer nor consumer": service.TelemetryCommand(settings=proto.Settings()),
    "too large": service.TelemetryCommand(
        thread_stack_trace=service.ThreadStackTrace(thread_stack_trace="x" * 600_000)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_client_whose_command_is_refused_has_no_stream(proxy, stream, name):
    await stream.write(REFUSED[name])
    with pytest.raises(grpc.aio.AioRpcError):
        await stream.read()

    (client,) = proxy._accounts.clients()
    assert client.stream is None


async def test_settings_of_a_stream_that_is_reset_at_once_leave_no_stream(proxy, admin):
    settings = service.TelemetryCommand(settings=subscription("billing", "orders", proto.PUSH_CONSUMER))
    fields = dict(HEADERS) | {":path": PREFIX + "Telemetry", "x-mq-client-id": CLIENT}
    _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(frames.PREFACE + raw_frame(4, 0, 0) + raw_frame(1, 4, 1, hpack.Encoder().encode(fields.items())))
    writer.write(raw_frame(0, 0, 1, grpc_message(settings.SerializeToString())) + raw_frame(3, 0, 1, bytes(4)))

    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (clients := list(proxy._accounts.clients())):
            await asyncio.sleep(0.005)
    assert clients[0].stream is None
    writer.close()
    await writer.wait_closed()
