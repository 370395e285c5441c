"""Key-value settings and their file."""

import json

import pytest

from pyromq.errors import StoreCorrupt
from pyromq.nameserver.kv import KvTable
from pyromq.store.json_file import JsonFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "namesrv" / "kvConfig.json"


@pytest.fixture
def kv(path):
    return KvTable(JsonFile(path))


def test_a_value_is_found_by_namespace_and_key(kv):
    kv.put("n", "k", "v")
    assert (kv.find("n", "k"), kv.find("n", "other"), kv.find("other", "k")) == ("v", None, None)
    assert kv.namespace("n") == {"k": "v"}
    assert kv.namespace("other") is None


def test_every_change_is_on_disk_at_once(kv, path):
    kv.put("n", "k", "v")
    kv.put("n", "k", "w")
    kv.put("n", "gone", "x")
    kv.delete("n", "gone")
    again = KvTable(JsonFile(path))
    again.load()
    assert again.namespace("n") == {"k": "w"}


def test_the_file_is_that_of_java(kv, path):
    kv.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    written = json.loads(path.read_bytes())
    assert len(written.pop("checksum")) == 8  # ours; Java passes over it
    assert written == {"configTable": {"ORDER_TOPIC_CONFIG": {"t": "broker-a:4"}}}
    path.write_bytes(b'{"configTable":{"ORDER_TOPIC_CONFIG":{"u":"broker-b:2"},"n":{}}}')
    kv.load()
    assert kv.find("ORDER_TOPIC_CONFIG", "u") == "broker-b:2"


def test_deleting_what_is_not_there_changes_nothing(kv, path):
    kv.delete("n", "k")
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
