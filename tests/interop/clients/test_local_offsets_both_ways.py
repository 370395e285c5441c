"""Offset files of broadcast consumers, written by one side and read by the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.peers.java import Driver

from pyromq import MessageQueue
from pyromq.client.consumer.group_offsets import OffsetFile

pytestmark = [pytest.mark.interop]

CLIENT, GROUP = "10.0.0.1@DEFAULT", "readers"
OFFSETS = {MessageQueue("news", "broker-a", number): number * (1 << 33) for number in range(5)}


@pytest.fixture(params=[4, 5])
def java(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> Driver:
    options = [f"-Drocketmq.client.localOffsetStoreDir={tmp_path}"]
    return Driver(home, "-", major=request.param, options=options)


def test_java_reads_ours(java: Driver, tmp_path: Path) -> None:
    OffsetFile(tmp_path, CLIENT, GROUP).save(OFFSETS)

    told = java.run("local-offsets", "news", CLIENT, GROUP)

    assert {MessageQueue("news", line["brokerName"], line["queueId"]): line["offset"] for line in told} == OFFSETS


def test_we_read_javas_and_java_keeps_our_queues(java: Driver, tmp_path: Path) -> None:
    ours = OffsetFile(tmp_path, CLIENT, GROUP)
    other = MessageQueue("other", "broker-b", 0)
    ours.save({other: 3})

    lines = [
        {"brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in OFFSETS.items()
    ]
    java.run("local-offsets", "news", CLIENT, GROUP, lines=lines)

    assert ours.load() == OFFSETS | {other: 3}
