"""The group table: built-in groups, automatic creation, the file."""

import errno

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.members.consumer_groups import BUILT_IN_GROUPS, ConsumerGroups
from pyromq.errors import IllegalName
from pyromq.remoting.bodies import GroupConfig, GroupConfigTable, decode_body, encode_body
from pyromq.remoting.headers import DeleteGroup, SaveGroup
from pyromq.store.json_file import JsonFile
from pyromq.testing import FakeClock, SimulatedDisk


@pytest.fixture
def groups(config, tmp_path):
    return ConsumerGroups(config, JsonFile(tmp_path / "groups.json"), FakeClock())


def test_built_in_groups_are_there(groups):
    assert {group.name for group in groups} == set(BUILT_IN_GROUPS)


def test_looking_for_a_group_creates_it(groups):
    group = groups.find("g")
    assert (group.consume_enabled, group.retry_queues, group.retry_max_times) == (True, 1, 16)
    assert groups.find("g") is group


def test_illegal_names_are_not_created(groups):
    assert groups.find("no blanks") is None
    with pytest.raises(IllegalName):
        groups.put(GroupConfig(name=""))


def test_automatic_creation_can_be_switched_off(groups, config):
    config.auto_create_group = False
    assert groups.find("g") is None
    assert groups.find("CID_RMQ_SYS_TRANS").name == "CID_RMQ_SYS_TRANS"


def test_changes_survive_a_restart(groups, config, tmp_path):
    groups.put(GroupConfig(name="g", retry_max_times=3, consume_enabled=False)).result(5)
    again = ConsumerGroups(config, JsonFile(tmp_path / "groups.json"), FakeClock())
    again.load()
    assert again.find("g") == GroupConfig(name="g", retry_max_times=3, consume_enabled=False)
    assert again.version == groups.version
    again.delete("g")
    assert "g" not in again


def test_a_group_that_came_by_itself_is_written_later(groups, config, tmp_path):
    groups.persist()
    assert groups.unsaved() is None
    groups.find("g")
    again = ConsumerGroups(config, JsonFile(tmp_path / "groups.json"), FakeClock())
    again.load()
    assert "g" not in again
    groups.unsaved()()
    assert groups.unsaved() is None
    again.load()
    assert "g" in again


def test_what_a_thread_writes_late_undoes_nothing(groups, config, tmp_path):
    groups.find("g")
    late = groups.unsaved()
    saved = groups.put(GroupConfig(name="h"))
    saved.result(5)
    late()
    again = ConsumerGroups(config, JsonFile(tmp_path / "groups.json"), FakeClock())
    again.load()
    assert "h" in again


async def test_a_change_that_is_answered_is_on_disk(caller, config):
    await caller.ask(SaveGroup(), encode_body(GroupConfig(name="g", retry_max_times=3)))
    path = config.data / "config" / "subscriptionGroup.json"
    assert decode_body(GroupConfigTable, path.read_bytes()).groups["g"].retry_max_times == 3
    await caller.ask(DeleteGroup(group="g"))
    assert "g" not in decode_body(GroupConfigTable, path.read_bytes()).groups


async def test_a_change_that_the_disk_does_not_take_is_refused_and_written_later(config, clock, caller_to):
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        disk.refuse = lambda kind, path: errno.ENOSPC if path.name.startswith("subscriptionGroup") else None
        response = await caller.ask(SaveGroup(), encode_body(GroupConfig(name="g")), code=14)
        assert "subscriptionGroup.json: No space left" in response.remark
        disk.refuse = lambda kind, path: None
        broker.groups.unsaved()()
        assert broker.groups.unsaved() is None
