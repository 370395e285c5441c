"""The offset table and its file."""

import pytest

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.errors import StoreNotWritable
from pyromq.store.json_file import JsonFile


@pytest.fixture
def offsets(tmp_path):
    offsets = ConsumerOffsets(JsonFile(tmp_path / "consumerOffset.json"))
    offsets.commit("g", "orders", 0, 5)
    offsets.commit("g", "orders", 1, 7)
    offsets.commit("other", "orders", 0, 3)
    offsets.commit("g", "more", 0, 1)
    return offsets


def test_offsets_are_found_by_group_topic_and_queue(offsets):
    assert offsets.find("g", "orders", 1) == 7
    assert offsets.find("g", "orders", 2) is None
    assert offsets.find("nobody", "orders", 0) is None
    assert offsets.of_topic("g", "orders") == {0: 5, 1: 7}
    assert offsets.topics_of("g") == {"orders", "more"}
    assert offsets.groups_of("orders") == {"g", "other"}


def test_what_was_persisted_survives_a_restart(offsets, tmp_path):
    offsets.persist()
    offsets.commit("g", "orders", 0, 9)
    again = ConsumerOffsets(JsonFile(tmp_path / "consumerOffset.json"))
    again.load()
    assert again.of_topic("g", "orders") == {0: 5, 1: 7}


def test_an_unchanged_table_is_not_written(offsets):
    assert offsets.unsaved() is not None
    assert offsets.unsaved() is None
    offsets.commit("g", "orders", 0, 6)
    assert offsets.unsaved() is not None


def test_a_table_that_could_not_be_written_is_written_later(tmp_path):
    (tmp_path / "file").write_text("in the way")
    offsets = ConsumerOffsets(JsonFile(tmp_path / "file" / "consumerOffset.json"))
    offsets.commit("g", "orders", 0, 1)
    with pytest.raises(StoreNotWritable):
        offsets.persist()
    assert offsets.unsaved() is not None


def test_java_writes_queue_ids_without_quotes(tmp_path):
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b'{\n\t"offsetTable":{\n\t\t"orders@g":{0:12,1:15\n\t\t}\n\t}\n}')
    offsets = ConsumerOffsets(JsonFile(path))
    offsets.load()
    assert offsets.of_topic("g", "orders") == {0: 12, 1: 15}


def test_a_clone_replaces_the_copy_and_stays_apart(offsets):
    offsets.clone("g", "copy", "orders")
    offsets.commit("g", "orders", 0, 100)
    assert offsets.of_topic("copy", "orders") == {0: 5, 1: 7}
    offsets.clone("nobody", "copy", "orders")
    assert offsets.of_topic("copy", "orders") == {0: 5, 1: 7}


def test_a_removed_group_has_no_offsets(offsets):
    offsets.remove_group("g")
    assert offsets.topics_of("g") == set()
    assert offsets.find("other", "orders", 0) == 3


def test_the_lowest_offset_of_all_groups_but_some(offsets):
    assert offsets.lowest_except("orders", set()) == {0: 3, 1: 7}
    assert offsets.lowest_except("orders", {"other"}) == {0: 5, 1: 7}
