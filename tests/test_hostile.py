"""What one hostile client can do, played small at servers whose limits are small: others are served, and it is told.

How long others wait, and the memory it takes, is measured by `make bench T=hostile`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.limits import BrokerLimits
from pyromq.broker.members.consumer_groups import BUILT_IN_GROUPS
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.remoting.connection_limits import ConnectionLimits
from pyromq.store.store_config import StoreConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from hostile import is_served
from loads.hostile_rows import ROWS, Row, Stranger

SIZE = 0.002  # of what the rows of the benchmark send
LIMITS = BrokerLimits(
    waiting_pulls=100, groups=len(BUILT_IN_GROUPS) + 3, subscription_length=500, query_bytes=4_500_000
)
CONNECTION_LIMITS = ConnectionLimits(unread_bytes=100_000, all_unread_bytes=1_000_000)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_others_are_served_whatever_one_client_does(
    row: Row, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = StoreConfig(tmp_path, segment_bytes=32 << 20, index_slots=1000, index_entries=1000)
    async with NameServer(NameServerConfig(port=0, max_topics=600)) as name_server:
        config = BrokerConfig(
            tmp_path,
            port=0,
            namesrv=(name_server.address,),
            limits=LIMITS,
            connection_limits=CONNECTION_LIMITS,
            store=store,
        )
        async with Broker(config) as broker:
            stranger = Stranger(broker.port, name_server.port, SIZE)
            honest = Stranger(broker.port, name_server.port)
            assert await asyncio.to_thread(is_served, honest)  # its group is there
            await asyncio.to_thread(row.act, stranger)
            assert await asyncio.to_thread(is_served, honest)
            stranger.leave()
            assert await asyncio.to_thread(is_served, honest)
            honest.leave()
    assert row.meets in caplog.text
