"""The offset table and its file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.errors import LimitReached, StoreNotWritable
from pyromq.store.json_file import JsonFile
from pyromq.testing import SimulatedDisk


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


def test_offsets_that_are_lowered_stay_low_over_a_restart(offsets, tmp_path):
    offsets.persist()
    offsets.lower(lambda topic, queue_id: 4 if topic == "orders" else 9)
    offsets.persist()
    again = ConsumerOffsets(JsonFile(tmp_path / "consumerOffset.json"))
    again.load()
    assert again.of_topic("g", "orders") == {0: 4, 1: 4}
    assert (again.find("other", "orders", 0), again.find("g", "more", 0)) == (3, 1)


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


NAMES = st.sampled_from(["a", "b", "c"])
CHANGES = st.one_of(
    st.tuples(st.just("commit"), NAMES, NAMES, st.integers(0, 3), st.integers(0, 9)),
    st.tuples(st.just("clone"), NAMES, NAMES, NAMES),
    st.tuples(st.just("remove_group"), NAMES),
    st.tuples(st.just("remove_topic"), NAMES),
)


@given(st.lists(CHANGES, max_size=40))
def test_what_a_group_or_topic_has_is_what_the_table_has(changes):
    offsets = ConsumerOffsets(JsonFile(Path("/srv/consumerOffset.json"), SimulatedDisk()))
    for name, *arguments in changes:
        getattr(offsets, name)(*arguments)
    table = offsets.table().offsets
    pairs = {tuple(key.split("@")) for key in table}
    for name in "abc":
        assert offsets.topics_of(name) == {topic for topic, group in pairs if group == name}
        assert offsets.groups_of(name) == {group for topic, group in pairs if topic == name}
    offsets.persist()
    again = ConsumerOffsets(offsets._file)
    again.load()
    assert again.table().offsets == {key: queues for key, queues in table.items() if queues}
    assert again._count == offsets._count == sum(map(len, table.values()))


def test_there_are_as_many_offsets_as_the_broker_keeps_and_more_for_itself(tmp_path):
    offsets = ConsumerOffsets(JsonFile(tmp_path / "consumerOffset.json"), most=2)
    assert offsets.commit("g", "orders", 0, 1)
    assert offsets.commit("g", "orders", 1, 1)
    assert not offsets.commit("g", "orders", 2, 1)
    assert not offsets.commit("h", "orders", 0, 1)
    assert offsets.commit("g", "orders", 0, 2)
    assert offsets.commit("CID_RMQ_SYS_TRANS", "orders", 0, 1)
    with pytest.raises(LimitReached, match=r"raise maxOffsets \(now 2\)"):
        offsets.clone("g", "h", "orders")
    offsets.remove_topic("orders")
    assert offsets.commit("h", "orders", 0, 1)


def test_what_the_broker_notes_for_itself_is_written_as_it_was_when_that_was_asked(tmp_path):
    offsets = ConsumerOffsets(JsonFile(tmp_path / "consumerOffset.json"))
    offsets.commit("CID_RMQ_SYS_TRANS", "half", 0, 1)
    save = offsets.unsaved()
    offsets.commit("CID_RMQ_SYS_TRANS", "half", 0, 2)
    save()
    again = ConsumerOffsets(JsonFile(tmp_path / "consumerOffset.json"))
    again.load()
    assert again.find("CID_RMQ_SYS_TRANS", "half", 0) == 1
