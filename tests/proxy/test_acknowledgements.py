"""Acknowledgements of several messages: few requests to the broker, and a status of its own for each entry."""

import asyncio

import pytest
from tests.proxy.calls import Calls, message
from tests.proxy.test_receiving import BILLING, ORDERS, received

from pyromq.errors import ResponseCode
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.command import Reply

ONE, SEVERAL = RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE


@pytest.fixture
async def handles(calls, cluster):
    """The receipt handles of five received messages, in two queues."""
    await (await cluster.admin()).create_topic("orders", 2)
    await calls.send(*(message(message_id=f"01{number}") for number in range(3)))
    await calls.send(*(message(message_id=f"02{number}") for number in range(2)))
    found = []
    while len(found) < 5:
        found += [each.system_properties.receipt_handle for each in (await received(calls))[1]]
    return found


@pytest.fixture
def asked(cluster):
    """The codes of the acknowledgements that the broker gets. Codes in `refused` have their reply."""
    found, refused = [], {}

    def divert(call):
        if call.code not in (ONE, SEVERAL):
            return None
        found.append(call.code)
        return Reply(code=refused[call.code], remark="refused") if call.code in refused else None

    cluster.broker.dispatcher.divert(divert)
    found_and_refused = type("Asked", (), {"codes": found, "refused": refused})
    yield found_and_refused
    cluster.broker.dispatcher.divert(None)


async def ack(calls, *handles, group=BILLING):
    entries = [service.AckMessageEntry(message_id=f"m{n}", receipt_handle=each) for n, each in enumerate(handles)]
    answer = await calls("AckMessage", service.AckMessageRequest(group=group, topic=ORDERS, entries=entries))
    assert [(each.message_id, each.receipt_handle) for each in answer.entries] == [
        (f"m{n}", each) for n, each in enumerate(handles)
    ]
    return answer


def names(answer):
    return [proto.Code.Name(each.status.code) for each in answer.entries]


async def none_is_redelivered(calls, cluster):
    await cluster.clock.advance(11)
    return (await received(calls))[0].code == proto.MESSAGE_NOT_FOUND


async def test_the_entries_of_a_call_are_one_request(calls, cluster, handles, asked):
    answer = await ack(calls, *handles)

    assert (answer.status.code, names(answer), asked.codes) == (proto.OK, ["OK"] * 5, [SEVERAL])
    assert await none_is_redelivered(calls, cluster)


async def test_calls_of_one_turn_share_a_request(calls, proxy, cluster, handles, asked):
    async with Calls(proxy.address, "another") as other:
        await asyncio.gather(ack(other), ack(calls), return_exceptions=True)  # both are connected
        answers = await asyncio.gather(*(ack(calls, each) for each in handles))

    assert [names(each) for each in answers] == [["OK"]] * 5
    assert len(asked.codes) < 5
    assert await none_is_redelivered(calls, cluster)


async def test_an_invalid_entry_does_not_change_the_status_of_others(calls, cluster, handles, asked):
    start, *rest = handles[1].split(" ")
    beyond = " ".join([start, *rest[:6], "99999"])

    answer = await ack(calls, handles[0], "rubbish", beyond, *handles[1:])

    assert answer.status.code == proto.MULTIPLE_RESULTS
    assert names(answer) == ["OK", "INVALID_RECEIPT_HANDLE", "INVALID_RECEIPT_HANDLE", "OK", "OK", "OK", "OK"]
    assert asked.codes == [SEVERAL]
    assert await none_is_redelivered(calls, cluster)


async def test_entries_whose_handle_has_expired_have_that_status_and_others_are_acknowledged(
    calls, cluster, handles, asked
):
    await cluster.clock.advance(11)
    again = []
    while len(again) < 5:
        again += [each.system_properties.receipt_handle for each in (await received(calls))[1]]

    answer = await ack(calls, handles[0], *again, handles[1])

    assert answer.status.code == proto.MULTIPLE_RESULTS
    assert names(answer) == ["INVALID_RECEIPT_HANDLE", *["OK"] * 5, "INVALID_RECEIPT_HANDLE"]
    assert "no longer valid" in answer.entries[0].status.message
    assert "no longer valid" not in answer.entries[1].status.message
    assert await none_is_redelivered(calls, cluster)


async def test_repeated_entries_are_acknowledged_once_and_are_no_error(calls, cluster, handles):
    answer = await ack(calls, *handles, *handles)
    assert names(answer) == names(await ack(calls, *handles)) * 2 == ["OK"] * 10


async def test_a_broker_without_batches_gets_single_acknowledgements(calls, cluster, handles, asked):
    asked.refused[SEVERAL] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    first, second = await ack(calls, *handles[:3]), await ack(calls, *handles[3:])

    assert names(first) + names(second) == ["OK"] * 5
    assert asked.codes == [SEVERAL, *[ONE] * 5]
    assert await none_is_redelivered(calls, cluster)


async def test_a_broker_that_is_busy_is_not_asked_for_each_message(calls, cluster, handles, asked):
    asked.refused[SEVERAL] = ResponseCode.SYSTEM_BUSY

    answer = await ack(calls, *handles)

    assert (names(answer), asked.codes) == (["TOO_MANY_REQUESTS"] * 5, [SEVERAL])
    assert not await none_is_redelivered(calls, cluster)


async def test_handles_of_unknown_brokers_and_groups_fail_by_themselves(calls, cluster, handles, asked):
    nowhere = handles[0].replace("broker-a", "broker-x")
    mine, others = await asyncio.gather(
        ack(calls, *handles, nowhere), ack(calls, *handles, group=proto.Resource(name="unknown"))
    )

    assert names(mine) == [*["OK"] * 5, "HA_NOT_AVAILABLE"]
    assert "OK" not in names(others)
    assert await none_is_redelivered(calls, cluster)


async def test_a_call_of_many_entries_is_several_requests(calls, cluster, asked):
    await (await cluster.admin()).create_topic("orders", 1)
    handles = [f"{offset} 1700000000000 10000 0 0 broker-a 0 {offset}" for offset in range(1024)]
    asked.refused[SEVERAL] = ResponseCode.SYSTEM_BUSY

    answer = await ack(calls, *handles)

    assert (set(names(answer)), asked.codes) == ({"TOO_MANY_REQUESTS"}, [SEVERAL] * 4)
