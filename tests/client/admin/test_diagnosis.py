"""Diagnosis tells apart what is wrong, and says what to do."""

import asyncio
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq import speedups
from pyromq.client.admin import diagnosis
from pyromq.client.admin.diagnosis import Finding, diagnose
from pyromq.store.retention import DiskUse
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


async def until_time_is_up(cluster, diagnosing, is_waiting):
    """Return what a diagnosis of two seconds finds whose time is up when it waits for an answer."""
    task = asyncio.create_task(diagnosing)
    await until(is_waiting)
    await cluster.clock.advance(2)  # a broker has three seconds to answer
    return await task


async def test_a_name_server_that_does_not_answer_in_time_is_named_with_what_was_found_and_what_is_left(cluster):
    taken = []
    async with await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0) as silent:
        name = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        diagnosing = diagnose(f"{cluster.namesrv};{name};127.0.0.1:1", clock=cluster.clock, seconds=2)
        findings = await until_time_is_up(cluster, diagnosing, lambda: taken)
        for each in taken:
            each.close()
            await each.wait_closed()
    assert [finding.ok for finding in findings] == [True, True, False, False]
    assert findings[2].name == "name server 127.0.0.1:1"  # it was asked at the same time
    text = "has not answered when the 2 s for all checks were over"
    assert findings[-1] == Finding(f"name server {name}", False, text)


async def test_brokers_and_topics_that_were_not_asked_in_time_are_named():
    async with Cluster(brokers=2, linked=True) as cluster:
        link = cluster.links[0]
        link.answers.pause()
        before = link.connections
        diagnosing = diagnose(cluster.namesrv, "orders", clock=cluster.clock, seconds=2)
        *_, last = await until_time_is_up(cluster, diagnosing, lambda: link.connections > before)
        link.answers.resume()
    assert last.name == "broker broker-a (id 0)"
    assert last.advice == "not asked any more: topic orders"


async def test_a_broker_that_hangs_takes_one_limit_and_the_others_are_checked(monkeypatch):
    monkeypatch.setattr(diagnosis, "CONNECT_SECONDS", PATIENCE_SECONDS)
    async with Cluster(brokers=3, linked=True) as cluster:
        await diagnose(cluster.namesrv, clock=cluster.clock)
        ways = [link.requests for link in cluster.links] + [cluster.links[1].answers]
        once = [way.passed_bytes for way in ways]
        for number in (0, 2):
            cluster.links[number].answers.pause()
        twice = f"{cluster.namesrv};{cluster.namesrv}"
        diagnosing = asyncio.create_task(diagnose(twice, "orders", clock=cluster.clock))
        await until(lambda: all(way.passed_bytes > 2.5 * size for way, size in zip(ways, once, strict=True)))
        await cluster.clock.advance(diagnosis.TIMEOUT)  # and not a limit for each broker and name server
        findings = await asyncio.wait_for(diagnosing, PATIENCE_SECONDS)
        for number in (0, 2):
            cluster.links[number].answers.resume()
    names = [finding.name for finding in findings if finding.name.startswith("broker")]
    assert names == [f"broker broker-{letter} (id 0)" for letter in "abcabc"]
    assert [finding.ok for finding in findings if finding.name.startswith("broker")] == [False, True, False] * 2
    hangs = findings[1]
    assert hangs.text.startswith("takes connections at 127.0.0.") and "does not answer" in hangs.text
    assert "the process is stopped, or it hangs" in hangs.advice


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
    assert finding.text == f"answers at {cluster.broker.address}, but accepts no messages"
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


async def test_a_data_folder_that_is_open_to_all_users_is_told(cluster):
    root = cluster.broker.store.config.root
    root.chmod(0o755)
    (finding,) = [each for each in await diagnose(cluster.namesrv) if each.name.startswith("broker")]
    assert finding.ok
    assert finding.advice == f"every user of its machine can read the data folder {root} (mode 755): chmod it to 700"


async def test_a_broker_whose_older_files_were_deleted(cluster, monkeypatch):
    monkeypatch.setattr(type(cluster.broker.store), "missing_files", (Path("/data/index/1"), Path("/data/index/2")))
    [finding] = wrong(await diagnose(cluster.namesrv))
    assert finding.text == f"answers at {cluster.broker.address}, but files of its store were deleted: 2"
    assert "/data/index/1" in finding.advice
