"""A master of ours with a genuine slave, and the other way round: equal log files, and what senders are answered."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.peers.clients import JavaClient, OurClient
from tests.interop.peers.java import Driver
from tests.interop.peers.pairs import FILE_BYTES, Pair, ask_broker, log_files, until
from tests.interop.peers.samples import samples

from pyromq import Decision, Message, TransactionProducer
from pyromq.remoting.headers import UpdateConsumerOffset

pytestmark = pytest.mark.interop

TOPIC = "copied"


@pytest.fixture(params=["master", "slave"])
def pair(jars: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair = Pair(tmp_path, ours=request.param)
    try:
        yield pair
    finally:
        pair.end()


def statuses(pair: Pair, count: int = 1) -> set[str]:
    client = OurClient(pair.master.namesrv)
    return {sent.status for sent in client.send("sync", [Message(TOPIC, b"hello")] * count)}


def wait_until_in_step(pair: Pair) -> None:
    """Wait until sends are confirmed by the slave."""
    until(lambda: statuses(pair) == {"SEND_OK"}, lambda: "the slave confirms no sends")


def test_a_pair_has_equal_log_files_and_confirms_sends(pair: Pair, home: Path) -> None:
    assert statuses(pair) == {"SLAVE_NOT_AVAILABLE"}
    pair.start_slave()
    wait_until_in_step(pair)
    client, java = OurClient(pair.master.namesrv), JavaClient(Driver(home, pair.master.namesrv))
    for each in (client, java):
        assert {sent.status for sent in each.send("sync", samples(TOPIC))} == {"SEND_OK"}
        assert {sent.status for sent in each.send("batch", samples(TOPIC))} == {"SEND_OK"}
    noise = random.Random(3)
    filling = [Message(TOPIC, noise.randbytes(noise.randrange(1, FILE_BYTES // 4))) for _ in range(40)]
    assert {sent.status for sent in client.send("async", filling)} == {"SEND_OK"}
    client.send("sync", [Message(TOPIC, b"later", delay_level=level) for level in (1, 2)])
    decisions = [Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN]
    with TransactionProducer("decides", pair.master.namesrv, check=lambda message: Decision.COMMIT) as producer:
        for decision in decisions:
            producer.send_in_transaction(Message(TOPIC, b"half"), lambda message, decision=decision: decision)
        time.sleep(8)  # the delays end, and the third half message is checked
    pair.wait_until_equal()
    assert len(log_files(pair.slave_store)) > 3
    for group, offset in (("one", 3), ("two", 5)):
        commit = UpdateConsumerOffset(consumer_group=group, topic=TOPIC, queue_id=0, commit_offset=offset)
        ask_broker(pair.master.broker, commit)
    until(lambda: not pair.unlike_tables(), lambda: f"tables differ: {pair.unlike_tables()}")
    pair.stop_slave()
    assert statuses(pair) == {"SLAVE_NOT_AVAILABLE"}
    client.send("async", filling)
    pair.start_slave()
    pair.kill_slave()  # while it takes in what it lacks
    pair.start_slave()
    wait_until_in_step(pair)
    pair.wait_until_equal()


def test_a_slave_that_stands_still_confirms_nothing(pair: Pair) -> None:
    statuses(pair)
    pair.start_slave()
    wait_until_in_step(pair)
    pair.suspend_slave()
    began = time.monotonic()
    assert statuses(pair) == {"FLUSH_SLAVE_TIMEOUT"}
    assert 2.5 < time.monotonic() - began < 6
    pair.resume_slave()
    wait_until_in_step(pair)
    pair.wait_until_equal()
