"""ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

import asyncio

import pytest
from h2.config import H2Configuration as Configuration
from h2.connection import H2Connection as Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, StreamEnded
from tests.proxy.calls import PREFIX, Calls, message, subscription
from tests.proxy.http2.peer import grpc_message
from tests.proxy.test_sending import stored
from tests.waiting import until

from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.remoting.bodies import GroupConfig

ORDERS, BILLING = proto.Resource(name="orders"), proto.Resource(name="billing")


@pytest.fixture
async def topic(cluster):
    await (await cluster.admin()).create_topic("orders", 1)


def receive_request(*, expression="*", kind=proto.TAG, seconds=10, poll=0, **more):
    request = service.ReceiveMessageRequest(group=BILLING, batch_size=32, **more)
    request.message_queue.topic.name = "orders"
    request.message_queue.broker.name = "broker-a"
    request.filter_expression.expression, request.filter_expression.type = expression, kind
    if seconds is not None:
        request.invisible_duration.seconds = seconds
    request.long_polling_timeout.seconds = poll
    return request


async def received(calls, **options):
    """Receive once; return the status and the messages."""
    answers = [each async for each in calls.receive(receive_request(**options))]
    messages = [each.message for each in answers if each.HasField("message")]
    if answers[0].status.code in (proto.OK, proto.MESSAGE_NOT_FOUND):
        assert answers[-1].HasField("delivery_timestamp")
    return answers[0].status, messages


async def ack(calls, handle, message_id="01A"):
    entry = service.AckMessageEntry(message_id=message_id, receipt_handle=handle)
    return await calls("AckMessage", service.AckMessageRequest(group=BILLING, topic=ORDERS, entries=[entry]))


async def test_a_message_is_received_as_it_was_sent_and_acknowledged(calls, cluster, topic):
    await calls.send(message(tag="paid", keys=["k"], user_properties={"a": "b"}, body=b"x" * 1000))

    status, (found,) = await received(calls)

    system = found.system_properties
    assert status.code == proto.OK, status
    assert (found.body, found.topic.name, dict(found.user_properties)) == (b"x" * 1000, "orders", {"a": "b"})
    assert (system.message_id, system.tag, list(system.keys)) == ("01A", "paid", ["k"])
    assert (system.delivery_attempt, system.message_type, system.body_digest.type) == (1, proto.NORMAL, proto.MD5)
    assert (await ack(calls, system.receipt_handle)).status.code == proto.OK
    await cluster.clock.advance(30)
    assert (await received(calls))[0].code == proto.MESSAGE_NOT_FOUND


async def test_a_message_without_ack_comes_again_with_the_next_attempt(calls, cluster, topic):
    await calls.send(message())
    _, (first,) = await received(calls)

    await cluster.clock.advance(11)
    _, (second,) = await received(calls)

    assert second.system_properties.message_id == first.system_properties.message_id
    assert second.system_properties.delivery_attempt == 2
    assert second.topic.name == "orders"
    assert (await ack(calls, second.system_properties.receipt_handle)).status.code == proto.OK


async def test_a_changed_time_has_a_new_handle(calls, cluster, topic):
    await calls.send(message())
    _, (found,) = await received(calls)
    handle = found.system_properties.receipt_handle
    request = service.ChangeInvisibleDurationRequest(group=BILLING, topic=ORDERS, receipt_handle=handle)
    request.invisible_duration.seconds = 60

    changed = await calls("ChangeInvisibleDuration", request)

    assert changed.status.code == proto.OK, changed
    assert changed.receipt_handle != handle
    await cluster.clock.advance(30)
    assert (await received(calls))[0].code == proto.MESSAGE_NOT_FOUND
    assert (await ack(calls, changed.receipt_handle)).status.code == proto.OK


async def test_a_dead_letter_is_made_of_the_message_that_the_handle_names(calls, cluster, topic):
    await calls.send(message(message_id="01A"), message(message_id="01B", body=b"bad"))
    _, found = await received(calls)
    bad = next(each for each in found if each.body == b"bad")
    request = service.ForwardMessageToDeadLetterQueueRequest(
        group=BILLING, topic=ORDERS, receipt_handle=bad.system_properties.receipt_handle, message_id="01B"
    )

    answer = await calls("ForwardMessageToDeadLetterQueue", request)

    assert answer.status.code == proto.OK, answer
    assert [each.body for each in stored(cluster, "%DLQ%billing")] == [b"bad"]


async def test_a_waiting_receive_gets_a_message_when_it_arrives(calls, proxy, cluster, topic):
    waiting = asyncio.ensure_future(received(calls, poll=20))
    async with Calls(proxy.address, "producer") as producer:
        await producer.send(message())

    _, (found,) = await waiting
    assert found.body == b"hello"


async def test_a_receive_of_a_client_that_terminates_is_answered_at_once(calls, proxy, topic):
    await calls.settings(subscription("billing", "orders"))
    waiting = asyncio.ensure_future(received(calls, poll=20))
    (access,) = proxy._accounts._accesses.values()
    while not access.clients.find("host@1@0@a").receives:
        await asyncio.sleep(0.01)

    await calls("NotifyClientTermination", service.NotifyClientTerminationRequest(group=BILLING))

    async with asyncio.timeout(15):
        status, messages = await waiting
    assert (status.code, messages) == (proto.MESSAGE_NOT_FOUND, [])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"seconds": 0}, proto.ILLEGAL_INVISIBLE_TIME),
        ({"seconds": 13 * 3600}, proto.ILLEGAL_INVISIBLE_TIME),
        ({"expression": "a >", "kind": proto.SQL}, proto.ILLEGAL_FILTER_EXPRESSION),
    ],
)
async def test_a_receive_with_a_fault_is_refused(calls, topic, options, code):
    status, messages = await received(calls, **options)

    assert (proto.Code.Name(status.code), messages) == (proto.Code.Name(code), [])
    assert status.message


@pytest.mark.parametrize("handle", ["", "rubbish", "0 1 2 3 4", "0 1700000000000 60000 0 0 nobody 0 0"])
async def test_a_handle_that_is_none_is_refused(calls, topic, handle):
    answer = await ack(calls, handle)

    assert answer.status.code in (proto.INVALID_RECEIPT_HANDLE, proto.HA_NOT_AVAILABLE)
    assert answer.status.message


async def test_a_message_with_all_attempts_used_becomes_a_dead_letter_when_it_is_received(calls, cluster, topic):
    await calls.send(message(), message(message_id="01B", body=b"other"))
    await received(calls)
    await cluster.clock.advance(11)  # the broker made copies for the second attempt
    await (await cluster.admin()).create_group(GroupConfig("billing", retry_max_times=0), replace=True)

    await cluster.clock.advance(31)  # the proxy reads the settings of groups again
    status, messages = await received(calls)

    assert (status.code, messages) == (proto.MESSAGE_NOT_FOUND, [])
    await until(lambda: len(stored(cluster, "%DLQ%billing")) == 2)
    await cluster.clock.advance(11)
    assert (await received(calls))[0].code == proto.MESSAGE_NOT_FOUND


async def test_messages_of_a_call_that_breaks_before_the_client_has_taken_them_come_again_at_once(
    calls, cluster, proxy, topic
):
    await calls.send(message(), message(message_id="01B", body=b"x" * 200_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    client = Connection(Configuration(client_side=True))
    client.initiate_connection()
    fields = {":method": "POST", ":scheme": "http", ":path": PREFIX + "ReceiveMessage", ":authority": "a"}
    fields |= {"content-type": "application/grpc", "te": "trailers", "x-mq-client-id": "another"}
    client.send_headers(1, fields.items())
    client.send_data(1, grpc_message(receive_request(seconds=600).SerializeToString()), end_stream=True)
    writer.write(client.data_to_send())
    got = b""
    while b"hello" not in got:  # and the windows stay closed for the large message
        got += await reader.read(65_536)

    client.reset_stream(1, ErrorCodes.CANCEL)
    writer.write(client.data_to_send())

    attempts = {}
    for _ in range(50):
        await cluster.clock.advance(0.1)
        _, messages = await received(calls, seconds=600)
        attempts |= {each.body[:5]: each.system_properties.delivery_attempt for each in messages}
    assert attempts == {b"hello": 2, b"xxxxx": 2}
    writer.close()


async def test_messages_of_a_receive_share_frames(calls, proxy, topic):
    await calls.send(*(message(message_id=f"01{number}", body=b"x" * 200) for number in range(32)))
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    client = Connection(Configuration(client_side=True))
    client.initiate_connection()
    fields = {":method": "POST", ":scheme": "http", ":path": PREFIX + "ReceiveMessage", ":authority": "a"}
    fields |= {"content-type": "application/grpc", "te": "trailers", "x-mq-client-id": "another"}
    client.send_headers(1, fields.items())
    client.send_data(1, grpc_message(receive_request().SerializeToString()), end_stream=True)
    writer.write(client.data_to_send())

    frames, is_ended = [], False
    while not is_ended:
        events = client.receive_data(await reader.read(65_536))
        frames += [each.data for each in events if isinstance(each, DataReceived)]
        is_ended = any(isinstance(each, StreamEnded) for each in events)

    data, answers = b"".join(frames), []
    while data:
        size = int.from_bytes(data[1:5], "big")
        answers.append(service.ReceiveMessageResponse.FromString(data[5 : 5 + size]))
        data = data[5 + size :]
    ids = [each.message.system_properties.message_id for each in answers if each.HasField("message")]
    assert sorted(ids) == sorted(f"01{number}" for number in range(32))
    assert len(frames) <= 3
    writer.close()
