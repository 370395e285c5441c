"""A stopped broker's folder with damage in any of its files: what a start, and a check before it, make of that.

Either everything is there, or the start refuses and names a file of the folder. A check says what it finds, and never
fails.
"""

import asyncio
import logging
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.message import encode_properties
from pyromq.net.channel import connect
from pyromq.record import decode_all
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import CreateTopic, UpdateConsumerOffset
from pyromq.store.offline.store_check import StoreCheck
from pyromq.store.store_config import StoreConfig
from pyromq.testing import FakeClock

from .headers import send_header

COUNT = 60
SIZES = {"segment_bytes": 8192, "consume_queue_entries": 20, "index_slots": 16, "index_entries": 60}
KINDS = ("flip", "cut", "empty", "missing", "garbage", "folder")
FLIPS = 3  # of each file


def settings(folder):
    return BrokerConfig(folder, port=0, store=StoreConfig(folder, **SIZES))


def sends(number):
    """The properties of the messages sent for a number: all have one, some wait for their time or a decision."""
    yield {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number}", "TAGS": f"t{number % 3}"}
    waiting = {3: {"DELAY": "3"}, 4: {"TIMER_DELAY_SEC": "90000"}, 5: {"TRAN_MSG": "true", "PGROUP": "p"}}
    if number % 10 in waiting:
        yield {"UNIQ_KEY": f"F{number:031X}", **waiting[number % 10]}


def send(queue_id, properties):
    return send_header(encode_properties(properties), queue_id=queue_id)


async def fill(folder, clock):
    async with Broker(settings(folder), clock) as broker:
        channel = await connect(broker.address, Dispatcher(), SystemClock())
        asked = [CreateTopic(topic="orders", read_queues=2, write_queues=2, permission=6)]
        for number in range(COUNT):
            asked += [send(number % 2, properties) for properties in sends(number)]
        asked.append(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=9))
        for number, header in enumerate(asked):
            assert (await channel.call(header, b"body %d" % number, timeout=30)).code == 0
        await clock.advance(11)
        await channel.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder, the time at which it was left, and what consumers can see in it."""
    folder = tmp_path_factory.mktemp("sound")
    clock = FakeClock()
    asyncio.run(fill(folder, clock))
    copy = shutil.copytree(folder, folder.with_name(f"{folder.name}-copy"))
    seen = asyncio.run(started(copy, clock.now_ms()))
    assert sum(seen.values()) == COUNT + COUNT // 10  # the delayed ones have come
    return folder, clock.now_ms(), seen


async def started(folder, now_ms):
    """Start a broker; return what consumers can see."""
    async with Broker(settings(folder), FakeClock(now_ms)) as broker:
        return Counter(body for queue_id in (0, 1) for body in bodies(broker.store, queue_id))


def bodies(store, queue_id):
    offset = store.min_offset("orders", queue_id)
    while offset < store.max_offset("orders", queue_id):
        found = store.read("orders", queue_id, offset, 32)
        yield from (each.body for view in found.records for each in decode_all(view))
        assert found.next_offset > offset
        offset = found.next_offset


def damage(path, kind, random):
    content = path.read_bytes()
    if kind == "flip":
        places = [place for place, byte in enumerate(content) if byte] or [0]
        changed = bytearray(content or b"\0")
        changed[random.choice(places)] ^= 1 << random.randrange(8)
        path.write_bytes(changed)
    elif kind in ("cut", "empty"):
        path.write_bytes(content[: len(content) // 2 if kind == "cut" else 0])
    elif kind == "garbage":
        path.write_bytes(random.randbytes(len(content)))
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()


def hides_some(name, kind):
    """Whether damage may look as if messages had never been, or had expired: then a check, or the start, says so."""
    if name.startswith("commitlog"):
        return kind == "flip" or (kind == "missing" and name.endswith("0" * 20))
    return name.startswith("consumequeue") and kind == "garbage"  # its last entries tell where the queue ends


@pytest.mark.slow  # a broker starts on many damaged folders
@pytest.mark.parametrize("kind", KINDS)
def test_a_start_loses_nothing_or_refuses_and_names_a_file(sound, tmp_path, kind, caplog):
    folder, now_ms, expected = sound
    random = Random(kind)
    bad = tmp_path / "bad"
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name = str(path.relative_to(folder))
        for _ in range(FLIPS if kind == "flip" else 1):
            shutil.rmtree(bad, ignore_errors=True)
            shutil.copytree(folder, bad)
            damage(bad / name, kind, random)
            outcome = asyncio.run(outcome_of(bad, now_ms))
            if isinstance(outcome, str):
                assert str(bad) in outcome, (name, outcome)
            else:
                assert not outcome - expected, name
                assert hides_some(name, kind) or outcome == expected, name


async def outcome_of(folder, now_ms):
    """Return what consumers see, or with which words the start refuses."""
    with_words = logging.getLogger("pyromq")
    with_words.setLevel(logging.CRITICAL)
    try:
        return await started(folder, now_ms)
    except MQError as error:
        return str(error)
    finally:
        with_words.setLevel(logging.NOTSET)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
def test_a_check_never_fails(sound, tmp_path, kind):
    folder, _, _ = sound
    random = Random(kind)
    bad = tmp_path / "bad"
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(folder, bad)
        damage(bad / path.relative_to(folder), kind, random)
        findings = StoreCheck(StoreConfig(bad)).run().findings
        assert all(Path(finding.path).is_relative_to(bad) for finding in findings)
