"""The state of a replica set on the command line, and changes of its master."""

import json
from contextlib import closing

import pytest
from tests.cli.conftest import Served

from pyromq.net.connection_config import ConnectionConfig


@pytest.fixture
def three(served_with, monkeypatch):
    served = served_with(replicas=3, min_in_sync=2)
    monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)
    return served


def others(served):
    (replicas,) = served.cluster.sets
    return [number for number in replicas.servers if number != replicas.master]


def test_replicas_are_listed_with_role_and_lag(cli, three):
    cli("send", "orders", "hello")
    (replicas,) = three.cluster.sets
    shown = cli("cluster", "replicas", "broker-a", "-o", "json")
    assert (shown.code, shown.err) == (0, "")
    found = json.loads(shown.out)
    assert (found["set"], found["master"], found["epoch"]) == ("broker-a", replicas.master, 1)
    assert (found["in_sync"], found["min_in_sync"], found["troubles"], found["losses"]) == ([1, 2, 3], 2, [], [])
    assert {each["replica"]: each["role"] for each in found["replicas"]} == {
        number: "master" if number == replicas.master else "follower" for number in (1, 2, 3)
    }
    assert all(each["lag_bytes"] == 0 and each["connected"] and each["in_sync"] for each in found["replicas"])

    table = cli("cluster", "replicas", "broker-a")
    assert f"master         {replicas.master}" in table.out
    assert table.out.count("follower") == 2


def test_a_planned_failover_says_how_long_it_took(cli, three):
    target = others(three)[0]
    done = cli("cluster", "failover", "broker-a", "--to", str(target))
    assert done.code == 0, done.err
    assert done.out.startswith(f"replica {target} is the master of broker-a, epoch 2, after 0.")
    assert cli("send", "orders", "hello").code == 0


def test_failovers_that_cannot_be_say_why(cli, three, shared, monkeypatch):
    master = three.cluster.sets[0].master
    for arguments, text in (
        (["broker-z", "--to", "1"], "replica set 'broker-z' has no registered broker; registered: broker-a"),
        (["broker-a", "--to", "9"], "replica set broker-a has no replica 9; it has 1, 2, 3"),
        (["broker-a", "--to", str(master)], f"replica {master} is the master of broker-a already"),
        (["broker-a", "--to", str(others(three)[0]), "--accept-loss", "--yes"], "has a master"),
    ):
        failed = cli("cluster", "failover", *arguments)
        assert (failed.code, failed.out) == (1, "")
        assert text in failed.err
    assert cli("cluster", "failover", "broker-a").code == 2
    assert cli("cluster", "failover", "broker-a", "--to", "0").code == 2
    away = cli("cluster", "replicas", "broker-a", "-n", "127.0.0.1:1")
    assert away.code == 1 and "127.0.0.1:1" in away.err

    alone = cli("cluster", "replicas", "broker-a", "-n", shared.namesrv)
    assert alone.code == 1 and "is not a replica of a set" in alone.err


def test_a_loss_is_accepted_only_after_a_question_that_names_it(cli, served_with, monkeypatch):
    served = served_with(replicas=2)
    monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)
    (replicas,) = served.cluster.sets
    (follower,) = others(served)

    async def lose_all_in_sync():
        master = replicas.master
        await replicas.stop(follower)
        await replicas.until(lambda: replicas.in_sync == [master])
        await replicas.stop(master)
        await replicas.start(follower)
        server = replicas.servers[follower]
        await replicas.until(lambda: server.trouble is not None)
        return master

    lost = served.do(lose_all_in_sync())
    shown = cli("cluster", "replicas", "broker-a")
    assert shown.code == 1
    assert "master         -\n" in shown.out
    assert f"trouble: no master; in sync last: replica {lost} (end " in shown.err

    command = ["cluster", "failover", "broker-a", "--to", str(follower), "--accept-loss"]
    asked = cli(*command, stdin=b"n\n")
    assert asked.code == 1
    assert f"in sync last: replica {lost} (end" in asked.err and "does not answer" in asked.err
    assert "nothing is changed" in asked.err

    done = cli(*command, "--yes", "--reason", "a fire")
    assert done.code == 0, done.err
    assert f"replica {follower} is the master of broker-a" in done.out
    assert "loss accepted: epoch" in cli("cluster", "replicas", "broker-a").err


ACCOUNTS = """
accounts:
- {accessKey: admin-12, secretKey: secret-of-admin, admin: true}
- {accessKey: shop-app, secretKey: secret-of-shop}
"""


def test_only_an_administrator_changes_the_master(cli, tmp_path, monkeypatch):
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    signed = ConnectionConfig(access_key="admin-12", secret_key="secret-of-admin")
    settings = {"replicas": 2, "permissions": True, "permissions_path": tmp_path, "connections": signed}
    with closing(Served(**settings)) as served:
        monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)
        monkeypatch.setenv("PYROMQ_ACCESS_KEY", "shop-app")
        monkeypatch.setenv("PYROMQ_SECRET_KEY", "secret-of-shop")
        (target,) = others(served)
        assert cli("cluster", "replicas", "broker-a").code == 0
        refused = cli("cluster", "failover", "broker-a", "--to", str(target))
        assert (refused.code, "shop-app" in refused.err) == (1, True), refused.err
        assert served.cluster.sets[0].master != target

        monkeypatch.setenv("PYROMQ_ACCESS_KEY", "admin-12")
        monkeypatch.setenv("PYROMQ_SECRET_KEY", "secret-of-admin")
        assert cli("cluster", "failover", "broker-a", "--to", str(target)).code == 0
        assert served.cluster.sets[0].master == target
