"""Diagnosis tells apart what is wrong, and says what to do."""

import pytest

from pyromq import speedups
from pyromq.client.admin.doctor.diagnosis import diagnose
from pyromq.store.log.disk_use import DiskUse
from pyromq.testing.cluster import Cluster


def wrong(findings):
    return [finding for finding in findings if not finding.ok]


async def test_nothing_is_wrong_with_a_running_cluster(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders")
    findings = await diagnose(cluster.namesrv, "orders")
    assert wrong(findings) == []
    assert [f.name for f in findings] == [
        f"name server {cluster.namesrv}",
        "broker broker-a (id 0)",
        "topic orders",
    ]


async def test_a_broker_says_which_form_of_the_hot_path_it_runs(cluster):
    _, finding = await diagnose(cluster.namesrv)
    assert finding.text == f"answers at {cluster.broker.address}; hot path: {speedups.hot_path}"


async def test_of_a_java_broker_no_hot_path_is_said(java_broker):
    _, finding = await diagnose(java_broker)
    assert finding.ok
    assert "hot path" not in finding.text


async def test_no_name_server():
    [finding] = await diagnose("127.0.0.1:1", "orders")
    assert not finding.ok
    assert "127.0.0.1:1 refuses connections" in finding.text
    assert "pyromq serve" in finding.advice


async def test_a_brokers_port_is_no_name_server(cluster):
    [finding] = await diagnose(cluster.broker.address)
    assert "not as a name server" in finding.text
    assert "9876" in finding.advice


async def test_no_broker_registered():
    async with Cluster(brokers=0) as cluster:
        _, finding = await diagnose(cluster.namesrv)
        assert finding.text == "no broker is registered"
        assert f"--namesrv {cluster.namesrv}" in finding.advice


async def test_a_broker_whose_address_leads_nowhere():
    async with Cluster(advertised_host="127.0.0.99") as cluster:
        _, finding = await diagnose(cluster.namesrv)
        assert "advertises 127.0.0.99" in finding.text
        assert "--broker-ip" in finding.advice


async def test_a_broker_that_takes_no_messages(cluster):
    cluster.broker.store.retention.measure = lambda path: DiskUse(path, 95, 5)
    await cluster.clock.advance(10)
    [finding] = wrong(await diagnose(cluster.namesrv))
    assert finding.text == f"answers at {cluster.broker.address}, but takes no messages"
    assert "95 % full" in finding.advice and "diskSpaceWarningLevelRatio" in finding.advice


@pytest.mark.parametrize(("created_by_sending", "ok"), [(True, True), (False, False)])
async def test_an_absent_topic_is_wrong_only_where_none_is_created(created_by_sending, ok):
    async with Cluster(auto_create_topic=created_by_sending) as cluster:
        finding = (await diagnose(cluster.namesrv, "orders"))[-1]
        assert finding.ok is ok
        assert ("pyromq topic create orders" in finding.advice) is not ok


async def test_a_topic_that_cannot_be_written(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders", permission="r")
    [finding] = wrong(await diagnose(cluster.namesrv, "orders"))
    assert "no queue that can be written" in finding.text


async def test_a_broker_taken_out_of_producers_routes(cluster):
    admin = await cluster.admin()
    await admin.create_topic("orders")
    await admin.wipe_write_permission("broker-a")
    [finding] = wrong(await diagnose(cluster.namesrv, "orders"))
    assert "(broker-a), `pyromq cluster unwipe` undoes it" in finding.advice


async def test_an_illegal_topic_name(cluster):
    [finding] = wrong(await diagnose(cluster.namesrv, "a b"))
    assert "illegal characters" in finding.text
