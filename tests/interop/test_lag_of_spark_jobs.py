"""The genuine administration tool shows how far a Spark stream is: offsets of a group that nobody is a member of."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.interop.peers.java import Tools
from tests.interop.peers.servers import OurServers

from pyromq import Admin, Message, Producer
from pyromq.client.blocking.consumers import QueueReader
from pyromq.spark.given_options import read_options
from pyromq.spark.options import STREAM
from pyromq.spark.read.stream_planning import StreamPlanning
from pyromq.testing import FakeClock

pytestmark = pytest.mark.interop


def test_the_genuine_tool_shows_a_streams_lag(ours: OurServers, home: Path, topic: str) -> None:
    given = {"namesrvAddr": ours.namesrv, "subscribe": topic, "group": f"{topic}-job", "startingOffsets": "earliest"}
    options = read_options(given, STREAM)
    with Admin(ours.namesrv) as admin, Producer("lag-test", ours.namesrv) as producer:
        admin.create_topic(topic, 1)
        with QueueReader(options.group, ours.namesrv) as client:
            planning = StreamPlanning(options, client, FakeClock())
            for _ in range(5):
                producer.send(Message(topic, b"read"))
            planning.commit(planning.next(planning.first()), last=True)
        for _ in range(3):
            producer.send(Message(topic, b"not read"))
    printed = Tools(home, ours.namesrv).run([f"consumerProgress -g {options.group}"])[0]
    (line,) = (line.split() for line in printed.splitlines() if line.startswith(topic))
    assert line[3:5] == ["8", "5"]  # the broker's offset, the job's
    assert "Diff Total: 3" in printed
