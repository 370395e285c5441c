"""What hooks of producers see and add, at a real broker: every kind of send, and the ends of transactions."""

from contextvars import ContextVar

import pytest

from pyromq import (
    AsyncProducer,
    AsyncTransactionProducer,
    BrokerError,
    ConsumeFrom,
    Consumer,
    ConsumerConfig,
    Decision,
    IllegalMessage,
    Message,
    Producer,
    ProducerConfig,
    SendKind,
    TransactionProducer,
    UsageError,
)
from pyromq.message import MessageQueue
from pyromq.testing import Cluster


class Watching:
    """Keeps what it is told, and gives each message its number among those of its send."""

    def __init__(self):
        self.begun = []
        self.ended = []
        self.transactions = []

    def before_send(self, send):
        for number, message in enumerate(send.messages):
            send.add_property("number", str(number), message=message)
        send.add_property("seen", "yes")
        send.state[self] = len(self.begun)
        self.begun.append(send)

    def after_send(self, send, outcome):
        assert self.begun[send.state[self]] is send
        self.ended.append((send.kind, outcome))

    def end_transaction(self, end):
        self.transactions.append(end)


class Failing:
    def before_send(self, send):
        raise ZeroDivisionError("before")

    def after_send(self, send, outcome):
        raise ZeroDivisionError("after")

    def end_transaction(self, end):
        raise ZeroDivisionError("end")


@pytest.fixture
def watching():
    return Watching()


@pytest.fixture
async def producer(cluster, watching):
    async with AsyncProducer("p", cluster.namesrv, config=ProducerConfig(hooks=(watching,))) as producer:
        yield producer


async def stored(cluster, result):
    admin = await cluster.admin()
    return await admin.view(result.offset_message_id)


async def test_a_send_is_seen_before_and_after_and_its_message_travels_with_added_properties(
    cluster, producer, watching
):
    message = Message("orders", b"1", properties={"own": "1"})
    result = await producer.send(message)
    (send,), ((kind, outcome),) = watching.begun, watching.ended
    assert (send.group, send.client_id, send.messages) == ("p", producer._cluster.client_id, [message])
    assert kind is SendKind.SINGLE
    assert (outcome.result, outcome.error) == (result, None)
    assert 0 < outcome.seconds < 5
    found = (await stored(cluster, result)).properties
    assert (found["own"], found["number"], found["seen"]) == ("1", "0", "yes")
    assert message.properties == {"own": "1"}


async def test_every_kind_of_send_is_told_once(cluster, producer, watching):
    await producer.send_soon(Message("orders", b"1"))
    await producer.send_batch([Message("orders", b"2"), Message("orders", b"3")])
    await producer.send(Message("orders", b"4", delay_level=1))
    await producer.send_one_way(Message("orders", b"5"))
    assert [kind for kind, _ in watching.ended] == [
        SendKind.SINGLE,
        SendKind.BATCH,
        SendKind.SINGLE,
        SendKind.ONE_WAY,
    ]
    assert [len(send.messages) for send in watching.begun] == [1, 2, 1, 1]
    assert watching.begun[2].messages[0].delay_level == 1
    one_way = watching.ended[3][1]
    assert (one_way.result, one_way.error) == (None, None)


async def test_each_message_of_a_batch_gets_its_own_properties(cluster, producer):
    result = await producer.send_batch([Message("orders", b"%d" % number) for number in range(3)])
    found = (await (await cluster.consumer()).pull(result.queue, 0)).messages
    assert [(m.body, m.properties["number"], m.properties["seen"]) for m in found] == [
        (b"0", "0", "yes"),
        (b"1", "1", "yes"),
        (b"2", "2", "yes"),
    ]


async def test_a_refusal_of_the_broker_is_told_and_raised(cluster, producer, watching):
    missing = MessageQueue("orders", "broker-a", 99)
    with pytest.raises(BrokerError) as raised:
        await producer.send(Message("orders", b"1"), queue=missing)
    ((_, outcome),) = watching.ended
    assert (outcome.result, outcome.error) == (None, raised.value)


async def test_what_cannot_be_encoded_is_told_and_raised(producer, watching):
    with pytest.raises(IllegalMessage):
        await producer.send(Message("orders", b"1", properties={"KEYS": "k"}))
    with pytest.raises(IllegalMessage):
        await producer.send_batch([Message("orders", b"1"), Message("others", b"1")])
    assert [type(outcome.error) for _, outcome in watching.ended] == [IllegalMessage] * 2


async def test_what_is_no_message_at_all_is_refused_before_any_hook(producer, watching):
    with pytest.raises(IllegalMessage):
        await producer.send(Message("orders", b""))
    with pytest.raises(UsageError):
        await producer.send(Message("orders", b"1"), timeout="soon")
    assert watching.begun == []


async def test_a_send_that_nobody_waits_for_is_told_when_its_answer_comes(producer, watching, until):
    await producer.queues("orders")
    producer.send_soon(Message("orders", b"1")).cancel()
    await until(lambda: watching.ended)
    assert watching.ended[0][1].result.queue.topic == "orders"


async def test_what_a_hook_raises_is_logged_and_breaks_nothing(cluster, caplog):
    watching = Watching()
    config = ProducerConfig(hooks=(Failing(), watching))
    async with AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: None, config=config) as producer:
        await producer.send(Message("orders", b"1"))
        async with producer.transaction(Message("orders", b"2")):
            pass
    assert (len(watching.ended), len(watching.transactions)) == (2, 1)
    assert caplog.text.count("its caller continues") == 5


async def test_a_property_that_cannot_be_is_the_hooks_failure_and_not_the_sends(cluster, caplog):
    class Adding:
        def before_send(self, send):
            send.add_property("TAGS", "mine")

        def after_send(self, send, outcome):
            pass

    async with AsyncProducer("p", cluster.namesrv, config=ProducerConfig(hooks=(Adding(),))) as producer:
        result = await producer.send(Message("orders", b"1", tags="own"))
    assert (await stored(cluster, result)).tags == "own"
    assert "property 'TAGS' is used by the system" in caplog.text


async def test_hooks_enclose_each_other(cluster):
    told = []

    class Noting:
        def __init__(self, name):
            self.name = name

        def before_send(self, send):
            told.append(f"{self.name} before")

        def after_send(self, send, outcome):
            told.append(f"{self.name} after")

    config = ProducerConfig(hooks=(Noting("outer"), Noting("inner")))
    async with AsyncProducer("p", cluster.namesrv, config=config) as producer:
        await producer.send(Message("orders", b"1"))
    assert told == ["outer before", "inner before", "inner after", "outer after"]


def test_a_hook_without_methods_of_one_is_refused():
    with pytest.raises(UsageError, match="has not the methods of a SendMessageHook or EndTransactionHook"):
        ProducerConfig(hooks=(object(),))
    with pytest.raises(UsageError, match="hooks="):
        ProducerConfig(hooks=Watching())


@pytest.fixture
def blocking(served, watching):
    with Producer("p", served.namesrv, config=ProducerConfig(hooks=(watching,))) as producer:
        yield producer


def test_a_blocking_producer_tells_the_same(blocking, watching):
    blocking.send(Message("orders", b"1"))
    blocking.send_soon(Message("orders", b"2")).result()
    blocking.send_batch([Message("orders", b"3")])
    blocking.send_one_way(Message("orders", b"4"))
    assert [kind for kind, _ in watching.ended] == [
        SendKind.SINGLE,
        SendKind.SINGLE,
        SendKind.BATCH,
        SendKind.ONE_WAY,
    ]


def test_a_request_is_told_when_it_is_stored(served, blocking, watching):
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    consumer = Consumer("answering", served.namesrv, config=config)
    consumer.subscribe("questions", lambda messages: consumer.reply(messages[0], b"42"))
    with consumer:
        assert blocking.request(Message("questions", b"?"), timeout=30).body == b"42"
    ((kind, outcome),) = watching.ended
    assert kind is SendKind.REQUEST
    assert outcome.result.queue.topic == "questions"


def test_a_hook_is_called_in_the_callers_context(served):
    user = ContextVar("user")

    class Naming:
        def before_send(self, send):
            send.add_property("user", user.get())

        def after_send(self, send, outcome):
            seen.append(send.added[0]["user"])

    seen = []
    with Producer("p", served.namesrv, config=ProducerConfig(hooks=(Naming(),))) as producer:
        user.set("ann")
        producer.send(Message("orders", b"1"))
        user.set("bob")
        producer.send_batch([Message("orders", b"1")])
        user.set("cy")
        producer.send_soon(Message("orders", b"1")).result()
    assert seen == ["ann", "bob", "cy"]


async def test_the_end_of_a_transaction_is_told_with_its_message_and_decision(cluster, watching):
    config = ProducerConfig(hooks=(watching,))
    async with AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: None, config=config) as producer:
        message = Message("orders", b"1", tags="paid")
        async with producer.transaction(message) as transaction:
            assert [kind for kind, _ in watching.ended] == [SendKind.HALF]
        rolled_back = await producer.send_in_transaction(Message("orders", b"2"), lambda _: Decision.ROLLBACK)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("orders", b"3")):
                raise ZeroDivisionError
    first, second, third = watching.transactions
    assert (first.group, first.message, first.transaction_id) == ("p", message, transaction.transaction_id)
    assert (first.decision, first.confirmed, first.from_check) == (Decision.COMMIT, True, False)
    assert first.broker == cluster.broker.address
    assert (second.decision, second.transaction_id) == (Decision.ROLLBACK, rolled_back.sent.message_id)
    assert (third.decision, third.confirmed) == (Decision.UNKNOWN, False)


async def test_a_decision_that_the_broker_asked_for_is_told(watching, until):
    config = ProducerConfig(hooks=(watching,))
    async with (
        Cluster(transaction_check_interval_ms=500, transaction_timeout_ms=500) as cluster,
        AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: Decision.COMMIT, config=config) as producer,
    ):
        await producer.send_half(Message("orders", b"1", keys="k"))
        await cluster.clock.advance(1.1)
        await until(lambda: watching.transactions)
    (end,) = watching.transactions
    assert (end.decision, end.from_check, end.message.topic, end.message.keys) == (
        Decision.COMMIT,
        True,
        "orders",
        ["k"],
    )


def test_a_blocking_transaction_tells_the_same(served, watching):
    config = ProducerConfig(hooks=(watching,))
    with TransactionProducer("p", served.namesrv, check=lambda _: None, config=config) as producer:
        with producer.transaction(Message("orders", b"1")):
            pass
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("orders", b"1")):
            raise ZeroDivisionError
    assert [(end.decision, end.message.body) for end in watching.transactions] == [
        (Decision.COMMIT, b"1"),
        (Decision.UNKNOWN, b"1"),
    ]


class Forbidding:
    """Lets nothing pass that is secret."""

    def check_forbidden(self, send):
        if any(message.tags == "secret" for message in send.messages):
            raise PermissionError(f"{send.kind.value}: secrets stay here")


async def test_what_a_hook_forbids_is_not_sent_and_its_reason_raised(cluster):
    watching = Watching()
    config = ProducerConfig(hooks=(Forbidding(), watching))
    secret, plain = Message("orders", b"1", tags="secret"), Message("orders", b"2")
    async with AsyncProducer("shop", cluster.namesrv, config=config) as producer:
        with pytest.raises(PermissionError, match="single: secrets stay here"):
            await producer.send(secret)
        with pytest.raises(PermissionError, match="batch: "):
            await producer.send_batch([plain, secret])
        with pytest.raises(PermissionError, match="single: "):
            await producer.send_soon(secret)
        result = await producer.send(plain)
    assert result.queue_offset == 0
    assert [list(send.messages) for send in watching.begun] == [[plain]]
