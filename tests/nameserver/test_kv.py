"""Key-value settings and their file."""

import errno
import json
from pathlib import Path

import pytest

from pyromq.errors import LimitReached, StoreCorrupt, StoreNotWritable
from pyromq.nameserver.kv_config import KvTable
from pyromq.slow_work import run_blocking
from pyromq.store.json_file import JsonFile
from pyromq.testing import SimulatedDisk


@pytest.fixture
def path(tmp_path):
    return tmp_path / "namesrv" / "kvConfig.json"


@pytest.fixture
def kv(path):
    kv = KvTable(JsonFile(path))
    yield kv
    kv.close()


def test_a_value_is_found_by_namespace_and_key(kv):
    run_blocking(kv.put("n", "k", "v"))
    assert (kv.find("n", "k"), kv.find("n", "other"), kv.find("other", "k")) == ("v", None, None)
    assert kv.namespace("n") == {"k": "v"}
    assert kv.namespace("other") is None


def test_a_change_is_on_disk_when_its_future_ends(kv, path):
    for value in ("v", "w"):
        run_blocking(kv.put("n", "k", value))
    run_blocking(kv.put("n", "gone", "x"))
    run_blocking(kv.delete("n", "gone"))
    again = KvTable(JsonFile(path))
    again.load()
    assert again.namespace("n") == {"k": "w"}


def test_a_change_that_the_disk_refuses_shows_nowhere():
    disk = SimulatedDisk()
    kv = KvTable(JsonFile(Path("/srv/kvConfig.json"), disk), max_bytes=300)
    run_blocking(kv.put("n", "k", "old"))
    disk.refuse = lambda kind, path: errno.EROFS
    for change in kv.put("n", "k", "new"), kv.put("n", "other", "v" * 50), kv.put("m", "k", "v"), kv.delete("n", "k"):
        with pytest.raises(StoreNotWritable, match=r"kvConfig\.json: Read-only"):
            run_blocking(change)
    assert (kv.namespace("n"), kv.namespace("m")) == ({"k": "old"}, None)
    disk.refuse = lambda kind, path: None
    run_blocking(kv.put("n", "other", "v" * 50))  # refused values take no room
    again = KvTable(JsonFile(Path("/srv/kvConfig.json"), disk))
    again.load()
    assert (again.namespace("n"), again.namespace("m")) == ({"k": "old", "other": "v" * 50}, None)


def test_the_file_is_that_of_java(kv, path):
    run_blocking(kv.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4"))
    written = json.loads(path.read_bytes())
    assert len(written.pop("checksum")) == 8  # ours; Java passes over it
    assert written == {"configTable": {"ORDER_TOPIC_CONFIG": {"t": "broker-a:4"}}}
    path.write_bytes(b'{"configTable":{"ORDER_TOPIC_CONFIG":{"u":"broker-b:2"},"n":{}}}')
    kv.load()
    assert kv.find("ORDER_TOPIC_CONFIG", "u") == "broker-b:2"


def test_deleting_what_is_not_there_changes_nothing(kv, path):
    run_blocking(kv.delete("n", "k"))
    assert not path.exists()


def test_a_copy_is_given_away_and_not_the_table(kv):
    run_blocking(kv.put("n", "k", "v"))
    kv.namespace("n")["k"] = "changed"
    assert kv.find("n", "k") == "v"


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"configTable":{"n":1}}', b"\xff\xfe"])
def test_a_damaged_file_is_named(kv, path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"kvConfig\.json is damaged: .*; restore it from a backup, or move it away"):
        kv.load()


def test_without_a_file_settings_live_in_memory():
    kv = KvTable(None)
    kv.load()
    run_blocking(kv.put("n", "k", "v"))
    assert kv.find("n", "k") == "v"


def test_values_have_room_for_so_many_bytes():
    kv = KvTable(None, max_bytes=500)
    run_blocking(kv.put("n", "k", "v" * 200))
    with pytest.raises(LimitReached, match=r"raise maxKvConfigBytes \(now 500\)"):
        run_blocking(kv.put("n", "other", "v" * 100))
    run_blocking(kv.put("n", "k", "v" * 10))
    run_blocking(kv.put("n", "other", "v" * 100))
    run_blocking(kv.delete("n", "other"))
    run_blocking(kv.put("n", "k", "v" * 390))


def test_what_was_stored_counts_after_a_restart(kv, path):
    run_blocking(kv.put("n", "k", "v" * 200))
    again = KvTable(JsonFile(path), max_bytes=400)
    again.load()
    with pytest.raises(LimitReached):
        run_blocking(again.put("n", "other", "v" * 100))
    again.close()
