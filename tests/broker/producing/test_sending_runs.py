"""Bursts of sends: stored by one write, each answered as if it had come alone."""

import asyncio

from tests.broker.headers import PLAIN, send_header

from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.headers import SendBatchMessage


def header(*, topic="orders", queue_id=0, properties="a\x011", batch=None):
    return send_header(properties, topic=topic, queue_id=queue_id, batch=batch)


async def burst(caller, *requests):
    """Write all requests at once; return their responses in order."""
    pending = [caller.channel.call_soon(request, body, timeout=30) for request, body in requests]
    return await asyncio.gather(*pending)


async def test_a_burst_keeps_its_order_in_each_queue(orders):
    requests = [(header(queue_id=n % 2), b"%d" % n) for n in range(10)]
    responses = await burst(orders, *requests)
    assert [response.code for response in responses] == [0] * 10
    assert [int(response.fields["queueOffset"]) for response in responses] == [n // 2 for n in range(10)]
    assert await orders.bodies(queue_id=1) == [b"1", b"3", b"5", b"7", b"9"]


async def test_one_refused_message_of_a_burst_is_refused_alone(orders):
    requests = [(header(), b"a"), (header(queue_id=99), b"b"), (header(), b""), (header(), b"d")]
    responses = await burst(orders, *requests)
    assert [response.code for response in responses] == [0, 1, 13, 0]
    assert await orders.bodies() == [b"a", b"d"]


async def test_a_burst_too_large_for_one_write_is_stored_all_the_same(orders):
    body = bytes(400_000)  # the store of these tests has segments of 1 MiB
    responses = await burst(orders, *[(header(), body) for _ in range(5)])
    assert [response.code for response in responses] == [0] * 5
    assert [int(response.fields["queueOffset"]) for response in responses] == list(range(5))


async def test_a_header_that_does_not_fit_spoils_no_other(orders):
    pending = [
        orders.channel.call_soon(header(), b"a", timeout=30),
        orders.channel.call_soon(header(topic=None), b"b", timeout=30),
        orders.channel.call_soon(header(), b"c", timeout=30),
    ]
    responses = await asyncio.gather(*pending)
    assert [response.code for response in responses] == [0, 1, 0]
    assert responses[1].remark == "the custom field <b> is null"
    assert await orders.bodies() == [b"a", b"c"]


async def test_batches_that_come_together_are_batches_whether_marked_or_not(orders):
    requests = [
        (SendBatchMessage(**(PLAIN | {"topic": "orders", "queue_id": 0})), encode_batch([BatchMember(0, body, "")]))
        for body in (b"a", b"b")
    ]
    responses = await burst(orders, *requests)
    assert [response.code for response in responses] == [0, 0]
    assert await orders.bodies() == [b"a", b"b"]
