"""The rights that each call needs, as the brokers judge them by the account whose keys sign the call."""

import pytest
from tests.proxy.calls import Calls, endpoints, message
from tests.proxy.test_accounts_and_tls import signed

from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service

ORDERS, BILLING = proto.Resource(name="orders"), proto.Resource(name="billing")
ACL = """
accounts:
- {accessKey: admin-account, secretKey: secret-of-admin, admin: true}
- {accessKey: sends-only, secretKey: secret-one, topicPerms: [orders=PUB]}
- {accessKey: receives-only, secretKey: secret-two, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}
- {accessKey: other-group, secretKey: secret-three, topicPerms: [orders=SUB], groupPerms: [shipping=SUB]}
- {accessKey: denied-topic, secretKey: secret-four, topicPerms: [orders=DENY], groupPerms: [billing=SUB]}
"""
SECRETS = {"sends-only": "one", "receives-only": "two", "other-group": "three", "denied-topic": "four"}


def calls_of(proxy, account):
    return Calls(proxy.address, f"host@{account}", **signed(account, f"secret-{SECRETS[account]}"))


async def received(calls):
    request = service.ReceiveMessageRequest(group=BILLING, batch_size=1)
    request.message_queue.topic.name, request.message_queue.broker.name = "orders", "broker-a"
    request.invisible_duration.FromSeconds(30)
    request.long_polling_timeout.FromMilliseconds(1)
    answers = [each async for each in calls.receive(request)]
    return answers[0].status, next((each.message for each in answers if each.HasField("message")), None)


@pytest.fixture
async def handle(guarded):
    """Return the receipt handle of a message that another account has received."""
    async with calls_of(guarded, "sends-only") as calls:
        assert (await calls.send(message())).status.code == proto.OK
    async with calls_of(guarded, "receives-only") as calls:
        status, found = await received(calls)
        assert status.code == proto.OK, status
        return found.system_properties.receipt_handle


@pytest.mark.parametrize("account", ["receives-only", "other-group", "denied-topic"])
@pytest.mark.parametrize("kind", [proto.NORMAL, proto.FIFO, proto.TRANSACTION])
async def test_who_may_not_publish_sends_nothing(guarded, account, kind):
    async with calls_of(guarded, account) as calls:
        answer = await calls.send(message(message_type=kind, message_group="g" if kind == proto.FIFO else ""))

    assert answer.status.code == proto.FORBIDDEN, answer
    assert account in answer.status.message


@pytest.mark.parametrize("account", ["sends-only", "other-group", "denied-topic"])
async def test_who_may_not_subscribe_receives_nothing(guarded, account):
    async with calls_of(guarded, account) as calls:
        status, found = await received(calls)

    assert (status.code, found) == (proto.FORBIDDEN, None), status
    assert account in status.message


@pytest.mark.parametrize("account", ["sends-only", "other-group", "denied-topic"])
@pytest.mark.parametrize("name", ["AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"])
async def test_a_handle_of_another_account_is_of_no_use_without_its_rights(guarded, handle, account, name):
    request = getattr(service, f"{name}Request")(group=BILLING, topic=ORDERS)
    if name == "AckMessage":
        request.entries.add(message_id="01A", receipt_handle=handle)
    else:
        request.receipt_handle = handle

    async with calls_of(guarded, account) as calls:
        answer = await calls(name, request)

    assert answer.status.code == proto.FORBIDDEN, answer
    async with calls_of(guarded, "receives-only") as owner:
        assert (await owner(name, request)).status.code == proto.OK


@pytest.mark.parametrize("account", ["receives-only", "other-group", "denied-topic"])
async def test_a_transaction_of_another_account_cannot_be_decided(guarded, account):
    async with calls_of(guarded, "sends-only") as owner:
        sent = await owner.send(message(message_type=proto.TRANSACTION))
        half = sent.entries[0].transaction_id
        request = service.EndTransactionRequest(
            topic=ORDERS, message_id="01A", transaction_id=half, resolution=proto.COMMIT
        )
        async with calls_of(guarded, account) as calls:
            answer = await calls("EndTransaction", request)

        assert answer.status.code == proto.FORBIDDEN, answer
        assert (await owner("EndTransaction", request)).status.code == proto.OK


@pytest.mark.parametrize("account", ["sends-only", "receives-only", "other-group", "denied-topic"])
async def test_routes_are_for_all_accounts(guarded, account):
    async with calls_of(guarded, account) as calls:
        answer = await calls("QueryRoute", service.QueryRouteRequest(topic=ORDERS, endpoints=endpoints("a:1")))

    assert answer.status.code == proto.OK, answer
