"""What the diagnosis says of replica sets, for states that are made up and for a set that runs."""

from __future__ import annotations

import msgspec
import pytest

from pyromq import ReplicaSetAnswers, ReplicaSetStatus, ReplicaState
from pyromq.client.admin.diagnosis import diagnose
from pyromq.client.admin.replica_diagnosis import set_findings
from pyromq.errors import Unavailable
from pyromq.remoting.bodies import InSyncReplica
from pyromq.testing import Cluster

AT = {1: "10.0.0.1:10911", 2: "10.0.0.2:10911", 3: "10.0.0.3:10911"}
NS = "10.0.0.9:9876"


def replica(number: int, **changed: object) -> ReplicaState:
    state = ReplicaState(
        number, number * 10, AT[number], is_master=number == 1, is_connected=True, is_in_sync=True, end=100
    )
    return msgspec.structs.replace(state, **{"lag_bytes": 0, "lag_seconds": 0.0} | changed)  # type: ignore[arg-type]


def status(number: int, **changed: object) -> ReplicaSetStatus:
    found = ReplicaSetStatus(
        *("orders", number, number * 10, number == 1, 7, 100, 100, 2),
        record_epoch=7,
        master=1,
        in_sync=[InSyncReplica(each, each * 10) for each in AT],
        replicas=[replica(each) for each in AT],
    )
    return msgspec.structs.replace(found, **changed)  # type: ignore[arg-type]


def answers(*found: ReplicaSetStatus, clocks: dict[int, tuple[float, float]] | None = None) -> ReplicaSetAnswers:
    by_address = {AT[each.number]: each for each in found}
    errors = {address: Unavailable("gone") for address in AT.values() if address not in by_address}
    return ReplicaSetAnswers(
        "orders", by_address, errors, {AT[each.number]: (clocks or {}).get(each.number, (0.0, 1.0)) for each in found}
    )


def only(found: ReplicaSetAnswers, master: str | None = AT[1]) -> tuple[bool, str, str]:
    (finding,) = set_findings(found, NS, master)
    assert finding.name == "replica set orders"
    return finding.ok, finding.text, finding.advice


def test_a_sound_set_has_one_finding() -> None:
    found = answers(status(1), status(2), status(3))
    assert only(found) == (True, "master is replica 1, epoch 7; 3 of 3 replicas in sync", "")


def test_a_minimum_of_one_with_three_replicas_is_advised_against() -> None:
    found = answers(*(status(each, min_in_sync=1) for each in AT))
    ok, _, advice = only(found)
    assert ok and "minInSyncReplicas is 1" in advice and "set it to 2" in advice


def test_silence_of_etcd_is_told_with_its_time() -> None:
    ok, text, advice = only(answers(status(1, etcd_seconds=5.9), status(2, etcd_seconds=75.2), status(3)))
    assert not ok and text == "etcd has not answered replica 2 for 75 s" and "nothing fails over" in advice


def test_too_few_in_sync_replicas_are_told() -> None:
    few = [InSyncReplica(1, 10)]
    ok, text, _ = only(answers(status(1, in_sync=few, refusal="in sync: 1, asked for: 2"), status(2), status(3)))
    assert not ok and text == "1 replica in sync, minInSyncReplicas is 2: sends are refused"


def test_trouble_is_told_although_there_is_a_master() -> None:
    ok, text, advice = only(answers(status(1, trouble="the registry went back"), status(2), status(3)))
    assert (ok, text) == (False, "the registry went back") and "before the next failover" in advice


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"lag_bytes": 5, "lag_seconds": 15.5}, "replica 3 is 5 bytes and 15.5 s behind"),
        ({"lag_bytes": 256 << 20, "lag_seconds": 2.0}, "replica 3 is 268435456 bytes and 2 s behind"),
        ({"is_connected": False}, "replica 3 is not connected to the master"),
    ],
)
def test_a_replica_that_is_far_behind_or_not_connected_is_named(changed: dict[str, object], text: str) -> None:
    behind = [replica(1), replica(2), replica(3, **changed)]
    ok, told, _ = only(answers(status(1, replicas=behind), status(2), status(3)))
    assert (ok, told) == (False, text)


def test_two_masters_and_a_name_server_that_shows_the_wrong_one_are_named() -> None:
    second = status(2, is_master=True, epoch=8, record_epoch=8, master=2, in_sync=[InSyncReplica(2, 20)] * 2)
    first, last = set_findings(answers(status(1), second, status(3)), NS, AT[1])
    assert first.text == "has two masters: replica 2 (epoch 8) and replica 1 (epoch 7)"
    assert first.advice.startswith("replica 1 confirms nothing")
    assert last.text == f"name server {NS} shows {AT[1]} as the master; the master is replica 2 at {AT[2]}"


@pytest.mark.parametrize(("apart", "is_told"), [(502.0, False), (503.0, True)])
def test_clocks_apart_by_more_than_half_a_second_and_the_uncertainty_are_named(apart: float, is_told: bool) -> None:
    found = answers(status(1), status(2), status(3), clocks={1: (0.0, 1.0), 3: (apart, 1.5)})
    ok, text, _ = only(found)
    assert ok is not is_told
    if is_told:
        assert text == "the clocks of replicas 1 and 3 are 503 ms apart"


def test_without_a_master_it_is_said_who_was_in_sync_last() -> None:
    states = [replica(1, is_connected=False, end=None, lag_bytes=None), replica(2), replica(3)]
    followers = [
        status(each, replicas=states, in_sync=[InSyncReplica(1, 10)], trouble="nobody is left") for each in (2, 3)
    ]
    ok, text, advice = only(answers(*followers), master=None)
    assert not ok
    assert text == ("has no master; in sync last: replica 1 (end unknown, does not answer); nobody is left")
    assert "`pyromq cluster failover orders --to N --accept-loss`" in advice


async def test_a_running_set_is_checked_and_a_single_broker_is_none() -> None:
    async with Cluster(replicas=3, min_in_sync=2) as cluster:
        found = await diagnose(cluster.namesrv)
        assert [each.text for each in found if not each.ok] == []
        assert [each.text for each in found if each.name == "replica set broker-a"] == [
            f"master is replica {cluster.sets[0].master}, epoch 1; 3 of 3 replicas in sync"
        ]
        cluster.registry.is_away = True
        await cluster.sets[0].kill(next(each for each in (1, 2, 3) if each != cluster.sets[0].master))
        found = await diagnose(cluster.namesrv)
        assert any("is not connected to the master" in each.text for each in found)
    async with Cluster() as cluster:
        assert not [each for each in await diagnose(cluster.namesrv) if each.name.startswith("replica set")]
