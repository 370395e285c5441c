"""Random damage anywhere in a broker's folder: every server and tool refuses it, repairs it or names it.

None passes it over, and none ends in a traceback. `make damage` tries many seeds; a failing one is named, and
`make damage DAMAGE_SEED=421 DAMAGE_RUNS=1` plays it again.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections import Counter
from random import Random

import pytest
from tests.broker.batches.test_batch_transaction_processor import Batches

from pyromq.broker.broker import Broker
from pyromq.cli.commands.store_commands import _table_findings
from pyromq.clock import SystemClock
from pyromq.errors import MQError, StoreCorrupt
from pyromq.net.channel import connect
from pyromq.record import decode_all
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import ListTimers, QueryMessage
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.offline.store_check import StoreCheck
from pyromq.store.offline.store_repair import StoreRepair
from pyromq.testing import FakeClock

from .test_damaged_folder import fill, settings

KINDS = ("flip", "zeros", "cut", "garbage", "missing", "extra")
SHORT = 12


class Talk(logging.Handler):
    """What a broker logs, warnings and worse."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with one of everything that can be damaged, when it was left, and what is seen in it a day later."""
    folder = tmp_path_factory.mktemp("searched")
    clock = FakeClock()
    asyncio.run(fill(folder, clock))
    asyncio.run(add_batches(folder, clock))
    seen, _ = asyncio.run(started(shutil.copytree(folder, folder.with_name(f"{folder.name}-copy")), clock.now_ms()))
    return folder, clock.now_ms(), seen


async def add_batches(folder, clock):
    async with Broker(settings(folder), clock) as broker:
        channel = await connect(broker.address, Dispatcher(), SystemClock())
        batches = Batches(_Asking(channel), clock)
        for name in ("one", "two"):
            await batches.run([f"{name} {number}" for number in range(3)], name=name, queue_id=1)
            await batches.commit({"a": 3}, name=name)
        await batches.run(["open"], name="three", queue_id=1)
        await clock.advance(1)
        await channel.close()


class _Asking:
    def __init__(self, channel):
        self.channel = channel

    async def ask(self, header, body=b"", *, code=0):
        response = await self.channel.call(header, body, timeout=30)
        assert response.code == code, response.remark
        return response


async def started(folder, now_ms):
    """Start a broker, ask it all sorts of things; return what is seen a day later, and what it logged."""
    talk, logger = Talk(), logging.getLogger("pyromq")
    logger.addHandler(talk)
    try:
        clock = FakeClock(now_ms)
        async with Broker(settings(folder), clock) as broker:
            channel = await connect(broker.address, Dispatcher(), SystemClock())
            for number in range(0, 60, 7):
                query = QueryMessage(topic="orders", key=f"k{number}", max_count=32, begin_ms=0, end_ms=1 << 62)
                await channel.call(query, timeout=30)
            await channel.call(ListTimers(topic="orders", count=100, begin_ms=0, after=-1), timeout=30)
            clock.jump(100_000)
            await clock.advance(3)
            found = Counter(body for queue_id in (0, 1) for body in pulled(broker.store, queue_id))
            await channel.close()
        return found, talk.records
    except MQError as error:
        return str(error), talk.records
    finally:
        logger.removeHandler(talk)


def pulled(store, queue_id):
    """Yield what a consumer can read: it cannot read a record of which nothing is left."""
    offset = store.min_offset("orders", queue_id)
    while offset < store.max_offset("orders", queue_id):
        found = store.read("orders", queue_id, offset, 1)
        with contextlib.suppress(StoreCorrupt):
            yield from [each.body for view in found.records for each in decode_all(view)]
        assert found.next_offset > offset
        offset = found.next_offset


def damage(folder, random):
    """Damage something; return the file, and how."""
    path = random.choice(sorted(each for each in folder.rglob("*") if each.is_file() and each.name != "lock"))
    kind = random.choice(KINDS)
    content = bytearray(path.read_bytes())
    if kind == "missing" or not content:
        path.unlink()
        return path, "missing"
    if kind == "extra":
        path = path.with_name(random.choice(("stray", path.name + ".old")))
    at = random.choice([place for place, byte in enumerate(content) if byte] or [0])
    if kind == "flip":
        content[at] ^= 1 << random.randrange(8)
    elif kind == "zeros":
        begin = at - at % 512
        content[begin : begin + 512] = bytes(len(content[begin : begin + 512]))
    elif kind == "cut":
        del content[at:]
    elif kind == "garbage":
        content[at : at + 64] = random.randbytes(len(content[at : at + 64]))
    path.write_bytes(content)
    return path, kind


def names_of(path, folder):
    """Return what a line may call a damaged file by: its path, that of a folder which is gone with it, its queue."""
    names = [str(path), str(path.with_suffix("")) + "."]  # of a bucket of timers the three files belong together
    inside = path.relative_to(folder).parts
    if inside[0] == "consumequeue":
        topic, queue_id = inside[1:3]
        names += [str(path.parent), f"queue {topic} {queue_id}:", f"queue {queue_id} of {topic}"]
    return names


def play(sound, folder, seed):
    """Damage a copy; return what is wrong with how it was met, "" for nothing."""
    source, now_ms, expected = sound
    random = Random(seed)
    bad = shutil.copytree(source, folder / str(seed))
    if random.random() < 0.3:
        (bad / "abort").write_text(f"1 {LOCAL_DISK.boot_id()} \n")  # as a killed process leaves it
    path, kind = damage(bad, random)
    what = f"seed {seed}: {kind} of {path.relative_to(bad)}"
    config = settings(bad).store_config
    findings = [*StoreCheck(config).run().findings, *_table_findings(bad)]
    mended = shutil.copytree(bad, folder / f"{seed}-mended")
    outcome, records = asyncio.run(started(bad, now_ms))
    if traced := [record.getMessage() for record in records if record.exc_info]:
        return f"{what}: traceback: {traced}"
    if isinstance(outcome, str):
        if str(bad) not in outcome:
            return f"{what}: refused without a file's name: {outcome}"
    elif outcome != expected:
        told = [str(each) for each in findings] + [record.getMessage() for record in records]
        if not any(name in line for line in told for name in names_of(path, bad)):
            return f"{what}: passed over: {expected - outcome} are missing, {outcome - expected} are new"
    StoreRepair(settings(mended).store_config, lambda text: None).run()
    again, records = asyncio.run(started(mended, now_ms))
    if traced := [record.getMessage() for record in records if record.exc_info]:
        return f"{what}: traceback after a repair: {traced}"
    if isinstance(again, str) and str(mended) not in again:
        return f"{what}: refused after a repair without a file's name: {again}"
    for each in (bad, mended):
        shutil.rmtree(each)
    return ""


def search(sound, folder, seeds):
    faults = []
    for seed in seeds:
        try:
            fault = play(sound, folder, seed)
        except Exception as error:  # noqa: BLE001 - a tool's traceback is what is looked for
            fault = f"seed {seed}: {error!r}"
        faults += [fault] if fault else []
    assert not faults, "\n".join(faults)


def test_damage_is_refused_repaired_or_named(sound, tmp_path):
    search(sound, tmp_path, range(SHORT))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_much_damage_is_refused_repaired_or_named(sound, tmp_path):
    first = int(os.environ.get("DAMAGE_SEED", Random().randrange(1 << 30)))
    print(f"seeds from {first} on")
    search(sound, tmp_path, range(first, first + int(os.environ.get("DAMAGE_RUNS", "500"))))
