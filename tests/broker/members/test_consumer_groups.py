"""The group table: built-in groups, automatic creation, the file."""

import errno

import pytest
from tests.broker.peers import a_peer
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.limits import BrokerLimits
from pyromq.broker.members.consumer_groups import BUILT_IN_GROUPS, MORE_SYSTEM_GROUPS, ConsumerGroups
from pyromq.errors import IllegalName, LimitReached
from pyromq.remoting.bodies import ConsumerOffsetTable, GroupConfig, GroupConfigTable, decode_body, encode_body
from pyromq.remoting.headers import DeleteGroup, SaveGroup
from pyromq.store.json_file import JsonFile
from pyromq.testing import FakeClock, SimulatedDisk


@pytest.fixture
def peer():
    return a_peer()


@pytest.fixture
def groups(config, tmp_path):
    return ConsumerGroups(config, JsonFile(tmp_path / "groups.json"), FakeClock())


@pytest.fixture
def limited(config, tmp_path):
    """Makes a table for so many groups more than a new one has."""

    def make(more):
        config.limits = BrokerLimits(groups=len(BUILT_IN_GROUPS) + more)
        return ConsumerGroups(config, JsonFile(tmp_path / "limited.json"), FakeClock())

    return make


def test_built_in_groups_are_there(groups):
    assert {group.name for group in groups} == set(BUILT_IN_GROUPS)


def test_looking_for_a_group_creates_it(groups, peer):
    group = groups.find("g", peer)
    assert (group.consume_enabled, group.retry_queues, group.retry_max_times) == (True, 1, 16)
    assert groups.find("g") is group


def test_nothing_is_created_for_nobody(groups):
    assert groups.find("g") is None


def test_illegal_names_are_not_created(groups, peer):
    assert groups.find("no blanks", peer) is None
    with pytest.raises(IllegalName):
        groups.put(GroupConfig(name=""))


def test_automatic_creation_can_be_switched_off(groups, config, peer):
    config.auto_create_group = False
    assert groups.find("g", peer) is None
    assert groups.find("CID_RMQ_SYS_TRANS", peer).name == "CID_RMQ_SYS_TRANS"


def test_changes_survive_a_restart(groups, config, tmp_path):
    groups.put(GroupConfig(name="g", retry_max_times=3, consume_enabled=False)).result(PATIENCE_SECONDS)
    again = ConsumerGroups(config, JsonFile(tmp_path / "groups.json"), FakeClock())
    again.load()
    assert again.find("g") == GroupConfig(name="g", retry_max_times=3, consume_enabled=False)
    assert again.version == groups.version
    again.delete("g")
    assert "g" not in again


def test_a_group_that_came_by_itself_is_written_later(groups, config, tmp_path, peer):
    groups.persist()
    assert groups.unsaved() is None
    groups.find("g", peer)
    again = ConsumerGroups(config, JsonFile(tmp_path / "groups.json"), FakeClock())
    again.load()
    assert "g" not in again
    groups.unsaved()()
    assert groups.unsaved() is None
    again.load()
    assert "g" in again


def test_what_a_thread_writes_late_undoes_nothing(groups, config, tmp_path, peer):
    groups.find("g", peer)
    late = groups.unsaved()
    saved = groups.put(GroupConfig(name="h"))
    saved.result(PATIENCE_SECONDS)
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


@pytest.mark.parametrize("is_known", [True, False])
async def test_offsets_that_are_deleted_with_their_group_are_deleted_on_disk(broker, caller, config, is_known):
    if is_known:
        await caller.ask(SaveGroup(), encode_body(GroupConfig(name="g")))
    broker.offsets.commit("g", "orders", 0, 5)
    broker.offsets.persist()
    await caller.ask(DeleteGroup(group="g", remove_offsets=True))
    path = config.data / "config" / "consumerOffset.json"
    assert "orders@g" not in decode_body(ConsumerOffsetTable, path.read_bytes()).offsets


async def test_after_a_change_that_the_disk_refuses_the_groups_before_it_are_written_later(config, clock, caller_to):
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        disk.refuse = lambda kind, path: errno.ENOSPC if path.name.startswith("subscriptionGroup") else None
        response = await caller.ask(SaveGroup(), encode_body(GroupConfig(name="g")), code=14)
        assert "subscriptionGroup.json: No space left" in response.remark
        disk.refuse = lambda kind, path: None
        assert "g" not in broker.groups
        broker.groups.unsaved()()
        assert broker.groups.unsaved() is None


def test_there_are_as_many_groups_as_the_broker_keeps(limited, peer):
    groups = limited(1)
    groups.find("last", peer)
    with pytest.raises(LimitReached, match=r"group \[more\] is not created.*raise maxGroups \(now 8\)"):
        groups.find("more", a_peer())
    with pytest.raises(LimitReached):
        groups.put(GroupConfig(name="more"))
    groups.put(GroupConfig(name="last", retry_queues=2))
    for number in range(MORE_SYSTEM_GROUPS):
        assert groups.find(f"CID_RMQ_SYS_{number}", a_peer()) is not None
    with pytest.raises(LimitReached):
        groups.find("CID_RMQ_SYS_MORE", a_peer())


def test_a_connection_has_its_share_of_groups_created(limited):
    groups = limited(100)
    greedy, other = a_peer(), a_peer()
    for number in range(10):
        groups.find(f"greedy-{number}", greedy)
    with pytest.raises(LimitReached, match=r"this connection created 10 groups.*raise maxGroups"):
        groups.find("greedy-10", greedy)
    assert "greedy-10" not in groups
    assert groups.find("greedy-1", greedy) is not None
    for number in range(9):
        groups.find(f"other-{number}", other)
    with pytest.raises(LimitReached):
        groups.find("other-9", other)


def test_everybody_may_have_one_group_created_and_what_ended_is_forgotten(limited):
    groups = limited(5)
    for number in range(5):
        peer = a_peer()
        assert groups.find(f"g-{number}", peer) is not None
        with pytest.raises(LimitReached):
            groups.find("more", peer)
        peer.close("the test ends")
    assert not len(groups._creations)
