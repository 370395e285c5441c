"""Checkpoints as Spark writes them, read and set anew; against a real broker, without Spark."""

import errno
import json
import os
import uuid

import pytest

from pyromq import Admin, Message, Producer
from pyromq.cli.main import run
from pyromq.errors import Unavailable, UsageError
from pyromq.message import MessageQueue
from pyromq.platforms import platform
from pyromq.spark.monitoring.query_checkpoint import describe, read_checkpoint, reset_to
from pyromq.spark.read.stream_offset import QueryStart, StreamOffset


@pytest.fixture(scope="module")
def topic(namesrv):
    """Two queues of ten messages."""
    name = f"checkpoint-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin, Producer("checkpoint-test", namesrv) as producer:
        admin.create_topic(name, 2)
        for number in range(20):
            producer.send(Message(name, b"x"), queue=MessageQueue(name, "broker-a", number % 2))
    return name


class Folder:
    """A checkpoint with some batches planned and some done."""

    def __init__(self, path, topic):
        self.path, self.topic = path, topic
        for name in ("offsets", "commits"):
            (path / name).mkdir()

    def plan(self, batch, *offsets):
        positions = {MessageQueue(self.topic, "broker-a", number): offset for number, offset in enumerate(offsets)}
        text = "\n".join(["v1", '{"conf":{}}', json.dumps(StreamOffset(positions).as_json())])
        (self.path / "offsets" / str(batch)).write_text(text)
        (self.path / "offsets" / f".{batch}.crc").write_bytes(b"crc")

    def finish(self, batch):
        (self.path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def folder(tmp_path, topic):
    folder = Folder(tmp_path, topic)
    folder.plan(0, 3, 2)
    folder.finish(0)
    folder.plan(1, 8, 7)
    return folder


def test_what_is_done_and_planned_is_shown_against_the_broker(folder, namesrv):
    rows = describe(read_checkpoint(folder.path), namesrv)
    assert [(row["queue"], row["done"], row["planned"], row["broker_max"], row["lag"]) for row in rows] == [
        (0, 3, 8, 10, 7),
        (1, 2, 7, 10, 8),
    ]


@pytest.mark.parametrize(("has_state", "batch"), [(False, 1), (True, 0)])
def test_a_query_is_set_anew_behind_what_was_planned(folder, namesrv, topic, has_state, batch):
    """The planned batch may be decided at its sink. A query with state has no state behind it yet."""
    if has_state:
        (folder.path / "state").mkdir()
    reset_to(folder.path, namesrv, json.dumps({topic: {"broker-a": {"1": 9}}}))
    checkpoint = read_checkpoint(folder.path)
    assert (checkpoint.batch, checkpoint.planned) == (batch, None)
    assert list(checkpoint.done.positions.values()) == [3, 9]
    assert not (folder.path / "offsets" / f".{batch}.crc").exists()


@pytest.mark.parametrize(("place", "offsets"), [("earliest", [0, 0]), ("latest", [10, 10])])
def test_a_query_is_set_to_an_end(folder, namesrv, place, offsets):
    assert list(reset_to(folder.path, namesrv, place).positions.values()) == offsets


@pytest.mark.parametrize(
    ("place", "code", "text"),
    [
        ("yesterday", 2, """--reset is 'yesterday'; write earliest, latest, or {"orders":"""),
        ("group", 2, "--reset is 'group'; a reset is to earliest, latest, or a table of offsets"),
        ('{"nosuch":{"broker-a":{"0":1}}}', 1, "--reset names topic 'nosuch', which this read does not have"),
        ('{"TOPIC":{"broker-a":{"9":1}}}', 1, "--reset names queue 9 of topic TOPIC"),
        (
            '{"TOPIC":{"broker-a":{"0":99}}}',
            1,
            "--reset of queue 0 of topic TOPIC at broker-a is 99; the queue holds 0 to 10\n",
        ),
    ],
)
def test_a_place_that_is_wrong_is_refused_in_the_words_of_the_command(
    folder, namesrv, topic, capsys, place, code, text
):
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    arguments = ["spark", "describe", str(folder.path), "--namesrv", namesrv, "--yes"]

    assert run([*arguments, "--reset", place.replace("TOPIC", topic)]) == code

    err = capsys.readouterr().err
    assert text.replace("TOPIC", topic) in err
    assert "startingOffsets" not in err
    assert "failOnDataLoss" not in err
    assert before == {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def test_a_reset_on_a_full_disk_leaves_the_checkpoint_whole(folder, namesrv, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = (folder.path / "offsets" / "1").read_bytes()
    monkeypatch.setattr(platform, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        reset_to(folder.path, namesrv, "latest")
    assert (folder.path / "offsets" / "1").read_bytes() == before


def test_queues_of_a_broker_that_is_away_are_moved_by_a_table_only(folder, namesrv, topic):
    positions = {MessageQueue(topic, name, 0): 3 for name in ("broker-a", "broker-z")}
    began = QueryStart(1_700_000_000_000, ("broker-a",))
    (folder.path / "offsets" / "0").write_text(
        "\n".join(["v1", "{}", json.dumps(StreamOffset(positions, began=began).as_json())])
    )
    with pytest.raises(Unavailable, match=r"broker broker-z is not registered at .*, so its queues cannot be reset"):
        reset_to(folder.path, namesrv, "latest")
    moved = reset_to(folder.path, namesrv, json.dumps({topic: {"broker-a": {"0": 5}}}))
    assert moved == StreamOffset(positions | {MessageQueue(topic, "broker-a", 0): 5}, began=began)


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(UsageError, match="is no checkpoint"):
        read_checkpoint(tmp_path)


def test_another_sources_checkpoint_is_named(folder):
    (folder.path / "offsets" / "0").write_text("v1\n{}\n17")
    with pytest.raises(UsageError, match="has no offset of a rocketmq source: '17'"):
        read_checkpoint(folder.path)


def test_a_query_that_has_done_nothing_cannot_be_set(folder, namesrv):
    (folder.path / "commits" / "0").unlink()
    with pytest.raises(UsageError, match="has no batch that is done"):
        reset_to(folder.path, namesrv, "latest")
