"""Damage in the files of messages that wait for a time: what the log still has is delivered, the rest is named."""

import json
from random import Random

import pytest
from tests.broker.delays.test_timer_recovery import Run

from pyromq.broker.delays.timer_processors import TimerListProcessor
from pyromq.remoting.bodies import TimerList, decode_body
from pyromq.remoting.headers import ListTimers
from pyromq.slow_work import run_blocking
from pyromq.store.json_file import verified
from pyromq.store.offline.store_check import StoreCheck

HOUR_MS = 3_600_000
COUNT = 60


@pytest.fixture
def waiting(config):
    """The settings of a stopped store in which messages wait, all of them copied; when it was stopped."""
    run = Run(config)
    now = run.clock.now_ms()
    for number in range(COUNT):
        run.park(now + HOUR_MS + number, f"K{number:02}")
    run.work()
    run.save()
    run.stop()
    return config, now


def file_of(config, suffix):
    (path,) = (config.data / "timers").glob(f"*.{suffix}")
    return path


def change(path, position, content):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def flip(path, position, bit):
    change(path, position, bytes([path.read_bytes()[position] ^ 1 << bit]))


def delivered(config, now):
    run = Run(config, now)
    run.clock.jump(2 * 3600)
    run.work()
    keys = run.keys()
    run.crash()
    return keys


def listed(run):
    listing = TimerListProcessor(run.timers, broker_name=run.config.name, clock=run.clock)
    reply = run_blocking(listing.list(ListTimers(topic="orders", count=100, begin_ms=0, after=-1), None))
    return [timer.message_id for timer in decode_body(TimerList, reply.body).timers]


KEYS = [f"K{number:02}" for number in range(COUNT)]


def test_zeros_in_records_cost_nothing_while_the_log_has_them(waiting):
    config, now = waiting
    change(file_of(config, "records"), 4096, bytes(4096))
    assert delivered(config, now) == KEYS


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_in_records_costs_nothing_while_the_log_has_them(waiting, seed):
    config, now = waiting
    random, path = Random(seed), file_of(config, "records")
    flip(path, random.randrange(path.stat().st_size), random.randrange(8))
    run = Run(config, now)
    assert listed(run) == KEYS
    run.crash()
    assert delivered(config, now) == KEYS


def test_what_nobody_has_any_more_is_named_and_costs_the_others_nothing(waiting, caplog):
    config, now = waiting
    path = file_of(config, "records")
    run = Run(config, now)
    entry = next(iter(run.timers.index.buckets.values())).entry(7)
    change(path, entry.position + 88, b"\xff")
    change(min((config.data / "commitlog").iterdir()), entry.log_offset + 88, b"\xff")
    others = [key for key in KEYS if key != "K07"]
    assert listed(run) == others
    run.clock.jump(2 * 3600)
    run.work()
    assert run.keys() == others
    run.crash()
    assert caplog.text.count(f"{path} byte {entry.position}: the record is damaged") >= 2


@pytest.mark.parametrize("byte", range(8))
@pytest.mark.parametrize("bit", [0, 2, 7])
def test_a_flipped_bit_in_what_is_finished_is_named_and_costs_no_message(waiting, caplog, byte, bit):
    config, now = waiting
    run = Run(config, now)
    run.cancel(now + HOUR_MS, "K00")
    run.cancel(now + HOUR_MS + 1, "K01")
    run.stop()
    path = file_of(config, "finished")
    flip(path, byte, bit)
    assert delivered(config, now) == [key for key in KEYS if key != "K01"]
    assert f"{path} byte 0 is damaged: " in caplog.text


def test_files_of_older_brokers_are_read_and_go_on(waiting):
    config, now = waiting
    run = Run(config, now)
    run.cancel(now + HOUR_MS, "K00")
    run.stop()
    entries, path = file_of(config, "entries"), file_of(config, "finished")
    for number in range(COUNT):
        change(entries, 36 * number + 24, bytes(2))
    path.with_suffix(".done").write_bytes(path.read_bytes()[:4])
    path.unlink()
    checkpoint = config.data / "timers" / "checkpoint.json"
    *_, finished = json.loads(checkpoint.read_bytes())["buckets"][path.stem]
    assert finished == 8
    checkpoint.write_bytes(verified(checkpoint.read_bytes()).replace(b",8]", b",4]"))
    run = Run(config, now)
    run.cancel(now + HOUR_MS + 1, "K01")
    run.stop()
    assert path.with_suffix(".done").read_bytes() == bytes((0, 0, 0, 0, 0, 0, 0, 1))
    assert not StoreCheck(config.store_config).run().findings
    assert delivered(config, now) == KEYS[2:]


@pytest.mark.parametrize("bit", [24, 30, 40, 62])
def test_a_due_time_of_another_hour_is_that_of_the_record(waiting, caplog, bit):
    config, now = waiting
    path = file_of(config, "entries")
    flip(path, 36 * 7 + 7 - bit // 8, bit % 8)
    assert delivered(config, now) == KEYS
    assert f"{path} byte {36 * 7}: its entry is not that of its record" in caplog.text


@pytest.mark.parametrize("bit", range(10, 20))
def test_a_due_time_that_is_off_within_its_hour_is_that_of_the_record(waiting, caplog, bit):
    config, now = waiting
    path = file_of(config, "entries")
    flip(path, 36 * 7 + 7 - bit // 8, bit % 8)
    run = Run(config, now)
    run.clock.jump(3599.9)
    run.work()
    assert run.keys() == []
    run.clock.jump(0.2)
    run.work()
    assert run.keys() == KEYS
    run.crash()
    assert f"{path} byte {36 * 7}: its entry is not that of its record" in caplog.text


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_bit_in_the_checkpoint_costs_nothing(waiting, seed):
    config, now = waiting
    random, path = Random(seed), config.data / "timers" / "checkpoint.json"
    flip(path, random.randrange(path.stat().st_size), random.randrange(8))
    assert delivered(config, now) == KEYS
