"""`pyromq store` on folders of stopped brokers, ours and Java's, and against a running one."""

import json

import msgspec
import pytest
from tests.golden.test_stores import CLEAN, CRASHED, unpack
from tests.store.making import TOPIC, fill, opened, small_store

from pyromq.cli.commands.messages.send import MessageLine
from pyromq.store.json_file import JsonFile
from pyromq.store.log_cut import LogCut


@pytest.fixture
def store(cli):
    """Run one command of `pyromq store`."""
    return lambda *arguments: cli("store", *map(str, arguments))


@pytest.fixture
def folder(tmp_path):
    """A stopped store of 40 messages in two log files."""
    with opened(tmp_path) as opened_store:
        fill(opened_store, 40)
    return tmp_path


def damage(folder):
    """Flip a bit in the first message's body; return the file."""
    path = folder / "commitlog" / f"{0:020}"
    content = bytearray(path.read_bytes())
    content[89] ^= 1
    path.write_bytes(content)
    return path


def test_a_sound_folder_checks_out(store, folder):
    done = store("check", folder)
    assert (done.code, done.err) == (0, "")
    assert done.lines == [
        "the log files have 4096 bytes: set mappedFileSizeCommitLog=4096 for the broker",
        "40 intact records, log offsets 0 to 6728: no problems found",
    ]


def test_what_a_start_mends_is_not_called_nothing(store, folder):
    (folder / "checkpoint").unlink()
    done = store("check", folder)
    assert done.code == 0
    assert done.lines[-1].endswith(": no repair needed")


def test_a_single_thing_is_told_as_one(store, folder):
    path = folder / "consumequeue" / TOPIC / "0" / f"{0:020}"
    path.write_bytes(path.read_bytes()[:39] + b"\1" + path.read_bytes()[40:])
    assert store("check", folder).lines[-1].endswith(": 1 problem found")
    assert "1 repair done" in store("repair", folder).lines


@pytest.mark.parametrize("name", [CLEAN, CRASHED])
def test_folders_of_java_brokers_check_out(store, tmp_path, name):
    done = store("check", unpack(name, tmp_path))
    assert done.code == 0
    assert done.lines[-1].endswith("no problems found" if name == CLEAN else "no repair needed")


def test_damage_is_told_with_file_and_byte_and_repaired(store, folder):
    path = damage(folder)
    done = store("check", folder)
    assert done.code == 1
    assert done.lines[0].startswith(f"{path} byte 0: record at byte 0: body does not match its checksum")
    assert "`pyromq store repair`" in done.lines[0]
    assert done.lines[-1].startswith("39 intact records")
    done = store("repair", folder)
    assert done.code == 0
    assert f"{path} byte 0: " in done.lines[0]
    assert done.lines[-1].endswith("no problems found")
    assert store("check", folder).code == 0


def test_programs_get_json(store, folder):
    path = damage(folder)
    report = json.loads(store("check", folder, "-o", "json").out)
    assert report["records"] == 39
    first = report["findings"][0]
    assert (first["file"], first["byte"], first["cure"]) == (str(path), 0, "repair")
    assert json.loads(store("repair", folder, "-o", "json").out)["done"]


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "delayOffset.json", "subscriptionGroup.json"])
def test_a_half_written_table_is_told_and_left_alone(store, folder, name):
    path = folder / "config" / name
    path.parent.mkdir()
    path.write_text('{"offsetTable":{"a')
    done = store("check", folder)
    assert done.code == 1
    assert done.lines[0].startswith(f"{path}: it is damaged: ") and "only a backup has it" in done.lines[0]
    path.with_name(f"{name}.bak").write_text("{}")
    done = store("check", folder)
    assert done.code == 0
    assert "the next start" in done.lines[0]
    assert sorted(each.name for each in path.parent.iterdir()) == [name, f"{name}.bak"]


def test_a_flipped_bit_in_a_table_is_told(store, folder):
    path = folder / "config" / "consumerOffset.json"
    JsonFile(path).save(b'{"offsetTable":{"orders@billing":{"0":71}}}')
    assert store("check", folder).code == 0
    path.write_bytes(path.read_bytes().replace(b"71", b"31"))
    done = store("check", folder)
    assert done.code == 1
    assert done.lines[0].startswith(f"{path}: it is damaged: its checksum is ")


def test_a_folder_in_use_is_refused(store, tmp_path):
    with opened(tmp_path):
        for command in ("check", "repair", "dump"):
            done = store(command, tmp_path)
            assert (done.code, done.err) == (
                1,
                f"error: data folder {tmp_path} is in use by a broker; stop the broker first\n",
            )


def test_a_folder_without_a_store_is_refused_and_not_touched(store, tmp_path):
    done = store("repair", tmp_path)
    assert done.code == 1
    assert "is not a data folder of a broker" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_message_is_dumped_by_log_offset_and_by_queue_offset(store, folder):
    with opened(folder) as opened_store:
        entry = opened_store.entries(TOPIC, 1, 3, 1)[0]
    by_log = json.loads(store("dump", folder, entry.log_offset, "-o", "json").out)
    by_queue = json.loads(store("dump", folder, "3", "--topic", TOPIC, "--queue", "1", "-o", "json").out)
    assert by_log == by_queue
    assert (by_log["log_offset"], by_log["queue_offset"], by_log["body"]) == (entry.log_offset, 3, "body 7")
    assert by_log["fault"] is None
    msgspec.convert(by_log, MessageLine)  # `pyromq send --input json` takes it
    shown = store("dump", folder, entry.log_offset)
    assert "body 7" in shown.out


def test_messages_that_were_cut_off_the_log_are_dumped(store, folder):
    with opened(folder) as opened_store:
        first_cut = opened_store.entries(TOPIC, 1, 18, 1)[0].log_offset
    cut_store = small_store(folder)
    cut_store.open(LogCut(first_cut, 7))
    cut_store.finish_cut()
    cut_store.close()
    records = [json.loads(line) for line in store("dump", folder, "--cut").lines]
    assert records[0]["log_offset"] == first_cut
    assert [record["body"] for record in records] == ["body 37", "body 38", "body 39"]
    of_one_queue = store("dump", folder, "--cut", "--queue", "0").lines
    assert [json.loads(line)["body"] for line in of_one_queue] == ["body 38"]
    assert "leave out the OFFSETs" in store("dump", folder, "--cut", "0").err
    assert store("check", folder).code == 0


def test_a_damaged_message_is_dumped_with_what_is_wrong(store, folder):
    damage(folder)
    done = store("dump", folder, "0", "-o", "json")
    assert done.code == 1
    record = json.loads(done.out)
    assert "checksum" in record["fault"] and record["topic"] == TOPIC


def test_where_no_record_begins_the_nearest_are_named(store, folder):
    with opened(folder) as opened_store:
        first, second = (opened_store.entries(TOPIC, queue, 0, 1)[0].log_offset for queue in (0, 1))
    done = store("dump", folder, second - 1)
    assert done.code == 1
    assert f"before begins at {first}, the next one begins at {second}" in done.err


def test_behind_the_log_its_end_is_named(store, folder):
    done = store("dump", folder, "6900")
    assert done.code == 1
    assert done.err.endswith("; the log ends at 6728\n")


def test_before_the_first_sound_record_none_is_invented(store, folder):
    damage(folder)
    done = store("dump", folder, "1")
    assert "; no intact record is before, the next one begins at " in done.err


def test_all_messages_are_dumped_one_a_line(store, folder):
    damage(folder)
    done = store("dump", folder, "--count", "5")
    assert [json.loads(line)["body"] for line in done.lines] == [f"body {number}" for number in range(1, 6)]
    assert done.err.startswith("log offsets 0 to ")
    assert len(store("dump", folder, "--topic", TOPIC).lines) == 39


def test_all_messages_of_one_queue_are_dumped(store, folder):
    lines = store("dump", folder, "--topic", TOPIC, "--queue", "1", "--count", "3").lines
    assert [json.loads(line)["body"] for line in lines] == ["body 1", "body 3", "body 5"]
    assert len(store("dump", folder, "--queue", "1").lines) == 20


def test_a_dump_of_what_is_not_there_is_an_error(store, folder):
    for which, text in (
        (["--topic", "other"], "topic 'other'"),
        (["--topic", TOPIC, "--queue", "7"], "queue 7 of topic"),
    ):
        done = store("dump", folder, *which)
        assert (done.code, done.out) == (1, "")
        assert f"there is no {text}" in done.err


def test_every_message_of_a_java_broker_is_dumped(store, tmp_path):
    assert len(store("dump", unpack(CLEAN, tmp_path)).lines) == 211


def test_a_log_that_lies_elsewhere_is_found_by_the_settings(store, tmp_path):
    with opened(tmp_path / "data", commit_log_path=tmp_path / "log") as opened_store:
        fill(opened_store, 10)
    settings = tmp_path / "broker.conf"
    settings.write_text(f"storePathCommitLog={tmp_path / 'log'}\nstorePathRootDir=/elsewhere\n")
    assert store("check", tmp_path / "data").code == 1
    done = store("check", tmp_path / "data", "--config", settings)
    assert done.lines[1:] == ["10 intact records, log offsets 0 to 1625: no problems found"]


def test_a_running_broker_deletes_what_is_old(store, served_with, tmp_path):
    served = served_with()
    done = store("expire", "--namesrv", served.namesrv)
    assert done.code == 0
    assert done.lines[1].split()[:2] == [served.broker.address, "0"]
    done = store("expire", served.broker.address, "--older-than", "1", "-n", served.namesrv, "-o", "json")
    assert json.loads(done.out)[0]["files_deleted"] == 0
