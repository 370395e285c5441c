"""The audit log: what administrators asked for, who, from where, and what became of it; never in the way of it."""

import json
import logging
from pathlib import Path
from random import Random

import pytest

from pyromq.broker.admin import audit_log
from pyromq.broker.broker import Broker
from pyromq.remoting.bodies import GroupConfig, encode_body
from pyromq.remoting.headers import (
    BrokerState,
    CleanTopics,
    ConsumeDirectly,
    DeleteTopic,
    SaveBrokerSettings,
    SaveGroup,
)
from pyromq.store.disk import LocalDisk, read_file
from pyromq.testing import FakeClock, SimulatedDisk
from pyromq.testing.simulated_disk import Loss


@pytest.fixture
def path(config):
    config.audit_log = True
    return config.data / "audit" / "audit.log"


@pytest.fixture
def audited(config, clock, caller_to, path):
    """Let somebody ask a broker; return the lines that were noted by its end."""

    async def act(ask):
        async with Broker(config, clock) as broker:
            await ask(await caller_to(broker))
        return [json.loads(line) for line in path.read_bytes().splitlines()]

    return act


async def test_a_request_is_noted_with_who_asked_what_from_where_and_the_outcome(audited):
    async def ask(caller):
        await caller.beat("tools@4711", producer="admin")
        await caller.create_topic("orders")
        await caller.ask(DeleteTopic(topic="TBW102"), code=1)

    created, refused = await audited(ask)
    assert created["from"].startswith("127.0.0.1:")
    assert created == {
        "time": "2023-11-14T22:13:20.000Z",
        "from": created["from"],
        "account": None,
        "client": "tools@4711",
        "request": "UPDATE_AND_CREATE_TOPIC",
        "fields": created["fields"],
        "outcome": "SUCCESS",
        "remark": None,
    }
    assert created["fields"]["topic"] == "orders"
    assert created["fields"]["readQueueNums"] == "4"
    assert (refused["outcome"], refused["remark"]) == (
        "SYSTEM_ERROR",
        "The topic[TBW102] is conflict with system topic.",
    )


async def test_questions_and_messages_are_not_noted(audited):
    async def ask(caller):
        await caller.create_topic("orders")
        await caller.ask(BrokerState())
        await caller.send("orders")
        await caller.messages("orders")

    assert len(await audited(ask)) == 1


async def test_of_bodies_only_the_names_of_what_is_changed_are_noted(audited, path):
    async def ask(caller):
        await caller.ask(SaveBrokerSettings(), b"regionId=hidden\nlongPollingEnable=false\n")
        await caller.ask(SaveGroup(), encode_body(GroupConfig(name="g")))
        await caller.ask(SaveBrokerSettings(), b"\xff", code=1)

    settings, group, unreadable = await audited(ask)
    assert settings["fields"] == {"settings": "regionId, longPollingEnable"}
    assert group["fields"] == {"group": "g"}
    assert unreadable["fields"] == {}
    assert b"hidden" not in path.read_bytes()


async def test_texts_are_bounded_and_cannot_forge_a_line(audited, path):
    async def ask(caller):
        await caller.ask(DeleteTopic(topic="x\n{}\x1b[2J\x7f\u2028" + "y" * 1_000), code=1)

    (line,) = await audited(ask)
    assert len(line["fields"]["topic"]) == audit_log.MAX_CHARACTERS + 3
    content = path.read_bytes()
    assert all(32 <= byte < 127 for byte in content[:-1])
    assert len(content) < 2_000


async def test_what_the_broker_asks_of_others_is_not_noted(audited):
    async def ask(caller):
        await caller.beat("one", group="g")
        relayed = ConsumeDirectly(consumer_group="g", client_id="one", message_id=None)
        await caller.channel.call(relayed, timeout=30)

    lines = await audited(ask)
    assert [line["request"] for line in lines] == ["CONSUME_MESSAGE_DIRECTLY"]


async def test_it_is_off_unless_it_is_wanted(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        await (await caller_to(broker)).create_topic("orders")
    assert not (config.data / "audit").exists()


async def test_lines_of_earlier_runs_stay_and_one_that_a_crash_cut_ends(audited, path):
    path.parent.mkdir()
    path.write_bytes(b'{"time": "2023')
    with pytest.raises(json.JSONDecodeError):
        await audited(lambda caller: caller.create_topic("orders"))
    cut, whole = path.read_bytes().splitlines()
    assert cut == b'{"time": "2023'
    assert json.loads(whole)["fields"]["topic"] == "orders"


async def test_a_full_file_gives_way_to_a_new_one_and_few_older_ones_are_kept(audited, path, monkeypatch):
    monkeypatch.setattr(audit_log, "FILE_BYTES", 100)

    for _ in range(2 * audit_log.OLDER_FILES):
        await audited(lambda caller: caller.ask(CleanTopics()))
    names = sorted(each.name for each in path.parent.iterdir())
    assert names == ["audit.log", *(f"audit.log.{number}" for number in range(1, audit_log.OLDER_FILES + 1))]


async def test_a_disk_that_refuses_does_not_stop_administration_and_is_told_once(
    config, clock, caller_to, path, caplog
):
    path.parent.write_bytes(b"")  # a file where the folder should be
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("first")
        await caller.create_topic("second")
        assert broker.topics.find("second") is not None
    told = [record for record in caplog.records if record.name == audit_log.logger.name]
    assert [record.levelno for record in told] == [logging.ERROR]
    assert "loses requests" in told[0].message


async def test_what_is_missing_is_noted_when_the_disk_takes_it_again(path, clock, disk_of_broker):
    file = audit_log.AuditFile(path, disk_of_broker, clock)
    path.parent.write_bytes(b"")
    file.append(b"lost\n")
    path.parent.unlink()
    file.append(b"kept\n")
    file.close()
    gap, kept = path.read_bytes().splitlines()
    assert json.loads(gap)["missing"] == 1
    assert kept == b"kept"


def test_a_power_loss_takes_no_written_line(monkeypatch):
    monkeypatch.setattr(audit_log, "FILE_BYTES", 30)
    folder, disk = Path("/srv/audit"), SimulatedDisk()
    for number in range(4):
        audit_log.AuditFile(folder / "audit.log", disk, FakeClock()).append(b"line number %d\n" % number)
        disk = disk.after_power_cut(Random(number), Loss.ALL)
    assert [read_file(disk, folder / name) for name in ("audit.log.1", "audit.log")] == [
        b"line number 0\nline number 1\n",
        b"line number 2\nline number 3\n",
    ]


def test_a_power_loss_takes_no_line_of_a_file_that_a_killed_process_began():
    path, disk = Path("/srv/audit/audit.log"), SimulatedDisk()
    disk.make_folder(path.parent)
    disk.open(path, create=True)
    audit_log.AuditFile(path, disk, FakeClock()).append(b"line\n")
    assert read_file(disk.after_power_cut(Random(1), Loss.ALL), path) == b"line\n"


@pytest.fixture
def disk_of_broker():
    """The machine's disk, with what is slow done at once."""

    class AtOnce(LocalDisk):
        in_threads = False

    return AtOnce()
