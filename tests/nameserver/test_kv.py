"""Key-value settings and their file."""

import json

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import LimitReached, StoreCorrupt
from pyromq.nameserver.kv_config import KvTable
from pyromq.store.json_file import JsonFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "namesrv" / "kvConfig.json"


@pytest.fixture
def kv(path):
    kv = KvTable(JsonFile(path))
    yield kv
    kv.close()


def test_a_value_is_found_by_namespace_and_key(kv):
    kv.put("n", "k", "v")
    assert (kv.find("n", "k"), kv.find("n", "other"), kv.find("other", "k")) == ("v", None, None)
    assert kv.namespace("n") == {"k": "v"}
    assert kv.namespace("other") is None


def test_a_change_is_on_disk_when_its_future_ends(kv, path):
    for value in ("v", "w"):
        kv.put("n", "k", value)
    kv.put("n", "gone", "x").result(PATIENCE_SECONDS)
    kv.delete("n", "gone").result(PATIENCE_SECONDS)
    again = KvTable(JsonFile(path))
    again.load()
    assert again.namespace("n") == {"k": "w"}


def test_the_file_is_that_of_java(kv, path):
    kv.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4").result(PATIENCE_SECONDS)
    written = json.loads(path.read_bytes())
    assert len(written.pop("checksum")) == 8  # ours; Java passes over it
    assert written == {"configTable": {"ORDER_TOPIC_CONFIG": {"t": "broker-a:4"}}}
    path.write_bytes(b'{"configTable":{"ORDER_TOPIC_CONFIG":{"u":"broker-b:2"},"n":{}}}')
    kv.load()
    assert kv.find("ORDER_TOPIC_CONFIG", "u") == "broker-b:2"


def test_deleting_what_is_not_there_changes_nothing(kv, path):
    assert kv.delete("n", "k") is None
    assert not path.exists()


def test_a_copy_is_given_away_and_not_the_table(kv):
    kv.put("n", "k", "v")
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
    kv.put("n", "k", "v")
    assert kv.find("n", "k") == "v"


def test_values_have_room_for_so_many_bytes():
    kv = KvTable(None, max_bytes=500)
    kv.put("n", "k", "v" * 200)
    with pytest.raises(LimitReached, match=r"raise maxKvConfigBytes \(now 500\)"):
        kv.put("n", "other", "v" * 100)
    kv.put("n", "k", "v" * 10)
    kv.put("n", "other", "v" * 100)
    kv.delete("n", "other")
    kv.put("n", "k", "v" * 390)


def test_what_was_stored_counts_after_a_restart(kv, path):
    kv.put("n", "k", "v" * 200).result(PATIENCE_SECONDS)
    again = KvTable(JsonFile(path), max_bytes=400)
    again.load()
    with pytest.raises(LimitReached):
        again.put("n", "other", "v" * 100)
    again.close()
