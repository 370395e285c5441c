"""Who may read what a broker writes: its own user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.making import message

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.client.consumer.group_offsets import OffsetFile
from pyromq.message import MessageQueue
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.store_config import StoreConfig


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of a folder and all below it that are neither 600 nor 700."""
    found = {str(path): oct(path.stat().st_mode & 0o777) for path in (folder, *folder.rglob("*"))}
    return {path: mode for path, mode in found.items() if mode != ("0o700" if Path(path).is_dir() else "0o600")}


async def test_all_that_a_broker_writes_is_for_its_own_user(tmp_path: Path) -> None:
    data = tmp_path / "above" / "data"
    store = StoreConfig(data, segment_bytes=1 << 20, consume_queue_entries=1000, index_slots=100, index_entries=1000)
    async with Broker(BrokerConfig(data, port=0, store=store)) as broker:
        broker.store.append(message(KEYS="k"))
        broker.offsets.commit("g", "orders", 0, 1)
    assert {"commitlog", "consumequeue", "index", "config"} <= {path.name for path in data.iterdir()}
    assert modes(data) == {}


def test_offsets_of_a_broadcasting_consumer_are_for_its_own_user(tmp_path: Path) -> None:
    file = OffsetFile(tmp_path / "offsets", "client", "g")
    for offset in (1, 2):
        file.save({MessageQueue("orders", "broker-a", 0): offset})
    assert modes(tmp_path / "offsets") == {}


def test_a_stricter_umask_holds_and_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    os.umask(0o277)
    LOCAL_DISK.close(LOCAL_DISK.open(tmp_path / "file", create=True))
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o400
    os.umask(0o022)
    (tmp_path / "folder").mkdir(mode=0o755)
    LOCAL_DISK.make_folder(tmp_path / "folder" / "below")
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755
    assert modes(tmp_path / "folder" / "below") == {}
