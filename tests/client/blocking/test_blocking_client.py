"""Blocking classes that are made of async ones: complete, and with the signatures and docstrings of those."""

import inspect

import pytest

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.blocking.admin import Admin
from pyromq.client.blocking.consumers import Consumer, PullConsumer, QueueReader
from pyromq.client.blocking.producers import Attempt, BatchTransactions, Producer
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.client.producer.batch_transactions import AsyncAttempt, AsyncBatchTransactions

PAIRS = [
    (AsyncAdmin, Admin, set()),
    (AsyncQueueReader, QueueReader, set()),
    (AsyncPullConsumer, PullConsumer, {"hand_back_latest", "next_buffered"}),
    (AsyncConsumer, Consumer, {"check_subscribed", "ended", "subscribe"}),
    (AsyncProducer, Producer, {"begin", "begin_soon", "check_open", "room"}),
    (AsyncBatchTransactions, BatchTransactions, {"ask"}),
    (AsyncAttempt, Attempt, set()),
]


@pytest.mark.parametrize(("source", "made", "left_out"), PAIRS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_blocking_class_has_the_methods_of_its_async_class(source, made, left_out):
    for name, method in inspect.getmembers(source, inspect.isfunction):
        if name.startswith("_") or name in left_out:
            continue
        own = getattr(made, name)
        assert not inspect.iscoroutinefunction(own)
        assert list(inspect.signature(own).parameters) == list(inspect.signature(method).parameters)
        assert own.__doc__


def test_parts_of_the_admin_client_are_complete():
    admin = Admin()
    parts = [(name, part) for name, part in vars(admin).items() if type(part).__name__.startswith("Blocking")]
    assert parts
    for name, part in parts:
        if name == "_runner":
            continue
        for each, method in inspect.getmembers(getattr(admin._async, name), inspect.ismethod):
            if not each.startswith("_"):
                assert inspect.signature(getattr(part, each)) == inspect.signature(method)
                assert getattr(part, each).__doc__ == method.__doc__
