"""Stores written by a genuine broker: opened here, they say what that broker said, and are not changed by it."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyromq.clock import SystemClock
from pyromq.message import Property, StoredMessage, decode_properties, pack_address
from pyromq.record import decode, encode
from pyromq.slow_work import run_blocking
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import StoreConfig

FOLDER = Path(__file__).parent / "store"
CLEAN, CRASHED = "store-java", "store-java-crashed"


@dataclass
class Golden:
    """A copy of a recorded store, opened, and what is known of it."""

    root: Path
    store: MessageStore
    expected: dict[str, Any]


def unpack(name: str, target: Path) -> Path:
    with tarfile.open(FOLDER / f"{name}.tar.gz") as archive:
        for member in archive.getmembers():
            path = target / member.name
            if member.isdir():
                path.mkdir(parents=True)
            else:
                content = archive.extractfile(member)
                assert content is not None
                path.write_bytes(content.read())
    return target / name


def store_in(root: Path) -> MessageStore:
    config = StoreConfig(root, segment_bytes=65536, consume_queue_entries=30, index_slots=64, index_entries=200)
    return MessageStore(config, SystemClock(), store_address=bytes(8))


@pytest.fixture(scope="module", params=[CLEAN, CRASHED])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Golden]:
    root = unpack(request.param, tmp_path_factory.mktemp("golden"))
    store = store_in(root)
    store.open()
    try:
        yield Golden(
            root, store, json.loads(gzip.decompress((FOLDER / f"{request.param}.expected.json.gz").read_bytes()))
        )
    finally:
        store.close()


def files_of(root: Path, *folders: str) -> dict[str, bytes]:
    paths = [path for folder in folders for path in (root / folder).rglob("*")]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}


def test_log_has_the_recorded_limits(golden: Golden) -> None:
    assert {"min": golden.store.min_log_offset, "max": golden.store.max_log_offset} == golden.expected["commitLog"]


def test_every_record_is_there_byte_for_byte(golden: Golden) -> None:
    for told in golden.expected["messages"]:
        record = golden.store.record_at(told["commitLogOffset"])
        assert record is not None
        assert hashlib.sha256(record).hexdigest() == told["recordSha256"]
        again = decode(record)
        assert encode(again) == record


def seen(message: StoredMessage) -> dict[str, Any]:
    """Describe a message as the recording does."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.log_offset,
        "storeSize": message.size,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_ms,
        "storeTimestamp": message.store_ms,
        "storeHost": message.store_host.replace(":", " "),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_offset,
        "bodyCRC": message.body_crc,
    }


def test_every_message_is_understood_to_the_last_field(golden: Golden) -> None:
    for told in golden.expected["messages"]:
        message = golden.store.message_at(told["commitLogOffset"])
        assert message is not None
        fields = seen(message)
        assert fields == {name: told[name] for name in fields}
        host, _, port = told["bornHost"].rpartition(" ")
        assert message.born_address == pack_address(host, int(port))
        properties = {name: text for name, text in told["properties"].items() if text}
        assert decode_properties(message.property_text) == properties
        assert (message.tags or "") == (told.get("tags") or "")
        assert properties.get(Property.KEYS) == (told.get("keys") or None)


def test_bodies_come_back_decompressed(golden: Golden) -> None:
    codecs = {"lz4": 0x100, "zstd": 0x200}
    missing = [flag for name, flag in codecs.items() if not importable("lz4.frame" if name == "lz4" else "zstandard")]
    for told in golden.expected["messages"]:
        message = golden.store.message_at(told["commitLogOffset"])
        assert message is not None
        if message.sys_flag & 1 and message.sys_flag & 0x700 in missing:
            continue
        assert len(message.body) == told["bodyLength"]
        assert hashlib.sha256(message.body).hexdigest() == told["bodySha256"]


def importable(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def stored_ms(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int | None:
    message = store.message(topic, queue_id, queue_offset)
    return None if message is None else message.store_ms


def test_queues_have_the_recorded_limits(golden: Golden) -> None:
    store = golden.store
    told = {
        f"{topic} {queue_id}": {
            "min": store.min_offset(topic, queue_id),
            "max": store.max_offset(topic, queue_id),
            "earliestStoreTime": stored_ms(store, topic, queue_id, store.min_offset(topic, queue_id)) or -1,
        }
        for topic in store.topics()
        for queue_id in store.queue_ids(topic)
    }
    assert told == golden.expected["queues"]


def test_every_queue_leads_to_its_records(golden: Golden) -> None:
    for told in golden.expected["messages"]:
        entry = golden.store.entries(told["topic"], told["queueId"], told["queueOffset"], 1)[0]
        assert (entry.log_offset, entry.size) == (told["commitLogOffset"], told["storeSize"])


def test_queries_by_key_find_what_the_broker_found(golden: Golden) -> None:
    for query in golden.expected["keyQueries"]:
        golden.store.follow_index()
        found = run_blocking(
            golden.store.search_by_key(query["topic"], query["key"], query["maxNum"], query["begin"], query["end"])
        )
        told = [int(offset_id[-16:], 16) for offset_id in query["offsetMsgIds"]]
        assert found.log_offsets == sorted(told, reverse=True)


def test_offsets_by_time_are_at_least_as_near_as_the_broker_s(golden: Golden) -> None:
    """The broker looks into one file only, chosen by its modification time; otherwise both give the same."""
    for search in golden.expected["searchOffset"]:
        topic, queue_id, wanted_ms = search["topic"], search["queueId"], search["timestamp"]
        found = run_blocking(golden.store.search_by_time(topic, queue_id, wanted_ms))
        ours, theirs = (stored_ms(golden.store, topic, queue_id, at) for at in (found, search["offset"]))
        if ours is None or theirs is None:
            assert found == search["offset"]
        else:
            assert abs(ours - wanted_ms) <= abs(theirs - wanted_ms)
            assert ours != theirs or found <= search["offset"]


def test_opening_a_cleanly_stopped_store_changes_nothing(tmp_path: Path) -> None:
    root = unpack(CLEAN, tmp_path)
    before = files_of(root, "commitlog", "consumequeue", "index", "config")
    store = store_in(root)
    store.open()
    store.close()
    assert files_of(root, "commitlog", "consumequeue", "index", "config") == before


def test_queues_and_index_made_again_from_the_log_are_the_broker_s(tmp_path: Path) -> None:
    root = unpack(CLEAN, tmp_path)
    before, index_before = files_of(root, "consumequeue"), files_of(root, "index")
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    store = store_in(root)
    store.open()
    store.close()
    assert files_of(root, "consumequeue") == before
    assert [content for _, content in sorted(files_of(root, "index").items())] == [
        content for _, content in sorted(index_before.items())
    ]


def test_crashed_store_is_cut_and_mended_as_the_broker_did(tmp_path: Path) -> None:
    root = unpack(CRASHED, tmp_path)
    before = files_of(root, "commitlog", "consumequeue")
    store = store_in(root)
    store.open()
    assert [store.max_offset("GoldenA", queue_id) for queue_id in range(4)] == [90, 150, 82, 82]
    assert store.max_log_offset == 448_768
    store.close()
    after = files_of(root, "commitlog", "consumequeue")
    log, gone_log = f"commitlog/{393_216:020}", f"commitlog/{458_752:020}"
    queue, gone_queue = f"consumequeue/GoldenA/1/{2400:020}", f"consumequeue/GoldenA/0/{1800:020}"
    assert before.keys() - after.keys() == {gone_log, gone_queue}
    assert {name for name in after if after[name] != before[name]} == {log, queue}
    assert after[log] == before[log][:55_552] + bytes(65_536 - 55_552)
    assert after[queue][:560] == before[queue][:560]
    assert not (root / "abort").exists()
