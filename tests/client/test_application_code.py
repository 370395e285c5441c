"""What applications hand over to be called: refused at once where it could never be called."""

import functools

import pytest

from pyromq import (
    Admin,
    AsyncConsumer,
    AsyncPullConsumer,
    AsyncTransactionProducer,
    Consumer,
    ConsumerConfig,
    Decision,
    Message,
    ProducerConfig,
    PullConsumer,
    TransactionProducer,
    UsageError,
)
from pyromq.client.application_code import check_takes


def spreads(function):
    """A decorator as many are written: with the signature of what it wraps, which is not its own."""

    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments, "more")

    return call


class Listens:
    def __call__(self, messages):
        pass

    def method(self, messages, more=None):
        pass


def none():
    pass


def two(messages, more):
    pass


def yields(messages):
    yield messages


async def yields_async(messages):
    yield messages


class Hook:
    def __init__(self, before_send):
        self.before_send = before_send

    def after_send(self, send, outcome):
        pass


class Store:
    def load(self, group):
        return {}

    def save(self, group, offsets):
        pass


@pytest.mark.parametrize(
    "function",
    [
        print,
        int,
        max,
        [].append,
        Listens(),
        Listens().method,
        functools.partial(two, more=1),
        spreads(two),
        lambda messages, **more: None,
        lambda *messages: None,
    ],
)
def test_what_may_be_callable_passes(function):
    check_takes(function, "messages", what="a listener")


@pytest.mark.parametrize(
    "function", [none, two, yields, yields_async, lambda *, messages: None, functools.partial(two, 1, 2), Listens]
)
def test_a_listener_that_cannot_take_messages_is_refused(function):
    for consumer in (Consumer("g"), AsyncConsumer("g")):
        with pytest.raises(UsageError, match="a listener"):
            consumer.subscribe("orders", function)
        with pytest.raises(UsageError, match="a listener"):
            consumer.subscribe("orders", type=dict)(function)
        with pytest.raises(UsageError, match="a listener"):
            consumer.subscribe("orders", type=dict, unfit=function)(print)


def test_a_refused_listener_is_named_with_its_signature():
    with pytest.raises(UsageError, match=r"called with \(messages\), which .*two.* \(messages, more\) does not take"):
        Consumer("g").subscribe("orders", two)


@pytest.mark.parametrize("consumer", [PullConsumer, AsyncPullConsumer])
def test_a_listener_for_queues_is_checked(consumer):
    with pytest.raises(UsageError, match=r"a listener for queues is called with \(queues\)"):
        consumer("g").subscribe("orders", listener=two)


@pytest.mark.parametrize("producer", [TransactionProducer, AsyncTransactionProducer])
def test_a_check_is_checked(producer):
    with pytest.raises(UsageError, match=r"check is called with \(message\)"):
        producer("g", check=none)


def test_what_a_transaction_executes_is_checked_before_anything_is_sent(served):
    check = lambda message: Decision.ROLLBACK  # noqa: E731
    with (
        TransactionProducer("tx", served.namesrv, check=check) as producer,
        pytest.raises(UsageError, match=r"execute is called with \(message\)"),
    ):
        producer.send_in_transaction(Message("never-sent", b"1"), none)
    with Admin(served.namesrv) as admin:
        assert "never-sent" not in admin.topics()


async def later(send):
    pass


@pytest.mark.parametrize(("before_send", "text"), [(none, r"called with \(send\)"), (later, "is async")])
def test_hooks_stores_and_strategies_are_checked(before_send, text):
    with pytest.raises(UsageError, match=f"before_send of hook .*{text}"):
        ProducerConfig(hooks=(Hook(before_send),))
    with pytest.raises(UsageError, match=r"load of offset_store=.* is called with \(group, queues\)"):
        ConsumerConfig(offset_store=Store())
    with pytest.raises(UsageError, match=r"strategy is called with \(group, member, queues, members\)"):
        ConsumerConfig(strategy=two)


def test_a_consumer_without_a_subscription_is_not_run(served):
    consumer = Consumer("g-none", served.namesrv)
    with pytest.raises(UsageError, match="group g-none has no subscription"):
        consumer.run()
    with consumer, pytest.raises(UsageError, match="group g-none has no subscription"):
        consumer.wait()


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_failure_that_repeats_has_one_traceback(cluster, until, caplog, orderly):
    def fail(messages):
        raise ValueError(f"no room for {messages[0].body.decode()}")

    config = ConsumerConfig(orderly=orderly, suspend_seconds=0.01)
    consumer = AsyncConsumer("g", cluster.namesrv, config=config)
    consumer.subscribe("orders", fail)
    producer = await cluster.producer()
    for number in range(20):
        await producer.send(Message("orders", b"%d" % number))

    def lines():
        return [each for each in caplog.records if "no room for" in each.getMessage()]

    async with consumer:
        await until(lambda: len(lines()) >= 4 if orderly else len(lines()) == 20)
    assert [bool(each.exc_info) for each in lines()] == [True, *[False] * (len(lines()) - 1)]
    assert "failure 3 of this kind" in lines()[2].getMessage()
