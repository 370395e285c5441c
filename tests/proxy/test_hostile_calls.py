"""What one hostile client can do at the gRPC port, played small: others are served, and memory is given back.

How long others wait, and the memory it takes, is measured by `make bench T=hostile-proxy`.
"""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.proxy.calls import message
from tests.waiting import PATIENCE_SECONDS

from pyromq.proxy.proto import definition_pb2 as proto

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from hostile_proxy import is_served
from loads.grpc_rows import ROWS, TOPIC
from loads.hostile_rows import Row, Stranger

SIZE = 0.002  # of what the rows of the benchmark send


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_others_are_served_whatever_one_client_does(row: Row, cluster, proxy, calls) -> None:
    await (await cluster.admin()).create_topic(TOPIC)
    stranger = Stranger(proxy.port, 0, SIZE)

    await asyncio.to_thread(row.act, stranger)

    assert await asyncio.to_thread(is_served, proxy.port)
    assert (await calls.send(message(TOPIC))).status.code == proto.OK
    stranger.leave()
    await calls.channel.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while proxy.shared.connections:
            await asyncio.sleep(0.005)
    shared = proxy.shared
    assert (shared.kept, shared.large.used, len(shared.waiting), len(shared.late)) == (0, 0, 0, 0)
