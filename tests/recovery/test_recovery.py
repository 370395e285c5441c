"""A store that was killed, cut or damaged opens again, keeps what was whole, and goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import StoreCorrupt
from pyromq.record import FIELD_AT
from pyromq.slow_work import run_blocking
from pyromq.store.message_store import MessageStore
from pyromq.store.offline.stopped_store import Cure
from pyromq.store.offline.store_check import StoreCheck
from pyromq.store.queue.consume_queue import ENTRY_BYTES
from pyromq.store.store_config import StoreConfig

from ..store.making import (
    NOON_MS,
    TOPIC,
    StoppedClock,
    bodies,
    crashed_copy,
    files_below,
    fill,
    message,
    opened,
)


def everything(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    return {
        (topic, queue_id): bodies(store, queue_id, topic=topic)
        for topic in store.topics()
        for queue_id in store.queue_ids(topic)
        if store.max_offset(topic, queue_id)
    }


def goes_on(root: Path) -> None:
    """The store takes messages, and has the old and the new ones after another start."""
    with opened(root) as store:
        before = everything(store)
        fill(store, 3, first=900, queues=1)
    with opened(root) as store:
        after = everything(store)
        assert after.pop((TOPIC, 0)) == [*before.pop((TOPIC, 0), []), b"body 900", b"body 901", b"body 902"]
        assert after == before


def test_everything_is_there_after_a_clean_stop(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 100)
        before, end = everything(store), store.max_log_offset
    assert not (tmp_path / "abort").exists()
    with opened(tmp_path) as store:
        assert everything(store) == before
        assert store.max_log_offset == store.flushed_to == end
    goes_on(tmp_path)


def test_clean_stop_leaves_no_segment_made_ahead(tmp_path: Path) -> None:
    sizes = {"segment_bytes": 1 << 20, "consume_queue_entries": 50_000}
    with opened(tmp_path, **sizes) as store:
        big = [message(n) for n in range(60)]
        for each in big:
            each.stored_body = bytes(15_000)
            store.append(each)
        assert store._log._preallocation._next is not None
        store._log._preallocation._next.result(timeout=PATIENCE_SECONDS)  # made by the helper's thread
        ahead = len(list((tmp_path / "commitlog").iterdir()))
        copy = crashed_copy(tmp_path, tmp_path.with_name(f"{tmp_path.name}-copy"))
    assert ahead == 2
    for root in (tmp_path, copy):
        with opened(root, **sizes) as store:
            assert store.max_offset(TOPIC, 0) == 60
        assert len(list((root / "commitlog").iterdir())) == 1


@pytest.mark.parametrize("power_loss", [False, True])
def test_crash_loses_nothing_that_was_written(tmp_path: Path, power_loss: bool) -> None:
    with opened(tmp_path / "first") as store:
        fill(store, 100)
        copy = crashed_copy(tmp_path / "first", tmp_path / "second", power_loss=power_loss)
        before = everything(store)
    with opened(copy) as store:
        assert everything(store) == before
    for folder in ("commitlog", "consumequeue"):
        assert files_below(copy / folder) == files_below(tmp_path / "first" / folder)
    goes_on(copy)


MAKING = Path(__file__).parents[1] / "store"
_KILLED = """
import os, signal, sys
from pathlib import Path
from making import fill, small_store
store = small_store(Path(sys.argv[1]))
store.open()
fill(store, 100)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_leaves_all_its_messages(tmp_path: Path) -> None:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(MAKING), *sys.path]))
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], env=environment)
    assert killed.returncode == -signal.SIGKILL
    with opened(tmp_path) as store:
        assert len(bodies(store, 0)) == len(bodies(store, 1)) == 50
        store.follow_index()
        assert run_blocking(store.search_by_key(TOPIC, "k99", 1, 0, 1 << 62)).log_offsets


def damaged(segment: Path, position: int, kind: str) -> None:
    content = bytearray(segment.read_bytes())
    if kind == "cut":
        content[position:] = bytes(len(content) - position)
    else:
        content[position] ^= 0x55
    segment.write_bytes(content)


class Torn(NamedTuple):
    """A store of 30 messages, and where in its last segment the last two records lie."""

    root: Path
    segment: Path
    begins: list[int]
    end: int
    bodies: dict[tuple[str, int], list[bytes]]


@pytest.fixture
def torn(tmp_path: Path) -> Torn:
    with opened(tmp_path / "whole") as store:
        sent = fill(store, 30)
        whole = everything(store)
        end = store.max_log_offset
    (tmp_path / "whole" / "abort").touch()  # a power cut: nobody knows who was there
    segment = sorted((tmp_path / "whole" / "commitlog").iterdir())[-1]
    base = int(segment.name)
    return Torn(tmp_path / "whole", segment, [each.log_offset - base for each in sent[-2:]], end - base, whole)


def opened_torn(torn: Torn, position: int, kind: str) -> dict[tuple[str, int], list[bytes]]:
    """Return what a damaged copy of the store still has, after it has taken and kept more messages."""
    root = torn.root.with_name("torn")
    shutil.copytree(torn.root, root)
    damaged(root / "commitlog" / torn.segment.name, position, kind)
    with opened(root) as store:
        kept = everything(store)
        end = store.max_log_offset - int(torn.segment.name)
    assert not any((root / "commitlog" / torn.segment.name).read_bytes()[end:])
    if position % 16 == 0:
        goes_on(root)
    shutil.rmtree(root)
    return kept


def swept(torn: Torn, how: str) -> Iterable[int]:
    """Positions in the last two records: all of them, or those around where a record begins and ends."""
    if how == "every byte":
        return range(torn.begins[0], torn.end)
    edges = [*torn.begins, torn.end]
    near = {edge + step for edge in edges for step in (-1, 0, 1, 4, 88)} | set(range(torn.begins[0], torn.end, 13))
    return sorted(position for position in near if torn.begins[0] <= position < torn.end)


SWEEPS = ["edges", pytest.param("every byte", marks=pytest.mark.soak)]


@pytest.mark.slow
@pytest.mark.parametrize("how", SWEEPS)
def test_cut_at_any_byte_of_the_tail_costs_only_what_it_touches(torn: Torn, how: str) -> None:
    for position in swept(torn, how):
        kept = opened_torn(torn, position, "cut")
        lost = 2 if position < torn.begins[1] else 1
        assert kept[TOPIC, 0] == torn.bodies[TOPIC, 0][: 16 - lost]
        assert kept[TOPIC, 1] == torn.bodies[TOPIC, 1][:14]


@pytest.mark.slow
@pytest.mark.parametrize("how", SWEEPS)
def test_flip_at_any_byte_of_the_tail_costs_only_what_lies_behind_it(torn: Torn, how: str) -> None:
    body_at = torn.begins[0] + 88
    for position in swept(torn, how):
        kept = opened_torn(torn, position, "flip")
        assert kept[TOPIC, 0][:14] == torn.bodies[TOPIC, 0][:14]
        assert kept[TOPIC, 1][:14] == torn.bodies[TOPIC, 1][:14]
        if body_at <= position < body_at + len(b"body 28"):
            assert len(kept[TOPIC, 0]) == 14


def test_after_a_clean_stop_a_damaged_end_is_not_cut_off(torn: Torn) -> None:
    (torn.root / "abort").unlink()
    before = files_below(torn.root)
    for position in range(torn.begins[0], torn.end, 7):
        root = torn.root.with_name("torn")
        shutil.copytree(torn.root, root)
        damaged(root / "commitlog" / torn.segment.name, position, "cut")
        record = torn.begins[0] if position < torn.begins[1] else torn.begins[1]
        with (
            pytest.raises(StoreCorrupt, match=rf"{torn.segment.name} byte {record}: no intact record.*store repair"),
            opened(root),
        ):
            pass
        left = files_below(root)
        assert {name for name in left if left[name] != before.get(name)} <= {f"commitlog/{torn.segment.name}", "lock"}
        shutil.rmtree(root)


@pytest.mark.parametrize("crash", ["none", "kill"])
def test_damage_in_front_of_sound_records_is_not_cut_off(tmp_path: Path, crash: str) -> None:
    with opened(tmp_path / "first") as store:
        sent = fill(store, 30)
        root = crashed_copy(tmp_path / "first", tmp_path / "second") if crash == "kill" else tmp_path / "first"
    damaged(root / "commitlog" / f"{0:020}", sent[3].log_offset + 90, "flip")
    if crash == "none":  # what a clean stop verifies is the end: here all, as it is short
        shutil.rmtree(root / "consumequeue")
    with (
        pytest.raises(
            StoreCorrupt,
            match=rf"byte {sent[3].log_offset}: .*(an intact one follows|consumequeue.* byte [0-9]+ leads to a record)",
        ),
        opened(root),
    ):
        pass


def test_records_torn_by_a_power_cut_are_cut_off_with_what_is_behind_them(tmp_path: Path) -> None:
    with opened(tmp_path / "first") as store:
        sent = fill(store, 20)
        root = crashed_copy(tmp_path / "first", tmp_path / "second", power_loss=True)
    (root / "checkpoint").unlink()  # nothing is known to be on disk
    damaged(root / "commitlog" / f"{0:020}", sent[10].log_offset + 90, "flip")
    with opened(root) as store:
        assert store.max_log_offset == sent[10].log_offset


def test_damage_of_records_that_were_on_disk_is_not_cut_off_after_a_power_cut(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        sent = fill(store, 30)
        clock.ms += 60_000
        fill(store, 1, first=30)
    (tmp_path / "abort").touch()
    shutil.rmtree(tmp_path / "consumequeue")  # so that the whole log is read
    damaged(tmp_path / "commitlog" / f"{0:020}", sent[3].log_offset + 90, "flip")
    with pytest.raises(StoreCorrupt, match=f"byte {sent[3].log_offset}: .*an intact one follows"), opened(tmp_path):
        pass


def test_queues_are_made_again_from_the_log_byte_for_byte(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 100, queues=3)
    before = files_below(tmp_path / "consumequeue")
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(tmp_path) as store:
        assert store.max_offset(TOPIC, 0) == 34
    assert files_below(tmp_path / "consumequeue") == before


@pytest.mark.parametrize("lost", [1, 5, 9, 20])
def test_lost_queue_entries_are_found_in_the_log(tmp_path: Path, lost: int) -> None:
    with opened(tmp_path / "first") as store:
        fill(store, 60)
        crashed_copy(tmp_path / "first", tmp_path / "second", power_loss=True)
    queue = tmp_path / "second" / "consumequeue" / TOPIC / "1"
    for entry in range(30 - lost, 30):  # as if their pages had not reached the disk
        with (queue / f"{entry // 8 * 160:020}").open("r+b") as file:
            file.seek(entry % 8 * 20)
            file.write(bytes(20))
    with opened(tmp_path / "second"):
        pass
    assert files_below(queue) == files_below(tmp_path / "first" / "consumequeue" / TOPIC / "1")


@pytest.mark.parametrize("kept", range(12, 20))
def test_an_entry_that_a_crash_cut_short_is_made_again_from_its_record(tmp_path: Path, kept: int) -> None:
    """Else a delayed message, whose entry ends with the time it is due, would come early."""
    with opened(tmp_path / "first") as store:
        fill(store, 21, queues=1)
        copy = crashed_copy(tmp_path / "first", tmp_path / "second")
    path = copy / "consumequeue" / TOPIC / "0" / f"{2 * 160:020}"
    whole = path.read_bytes()
    path.write_bytes(whole[: 80 + kept] + bytes(160 - 80 - kept))
    with opened(copy):
        pass
    assert path.read_bytes() == whole


def test_entries_lost_before_the_checkpoint_are_searched_in_the_whole_log(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        fill(store, 40)
        clock.ms += 60_000
        fill(store, 40, first=40)
        before = everything(store)
    (tmp_path / "abort").touch()
    last = sorted((tmp_path / "consumequeue" / TOPIC / "0").iterdir())[-3:]
    for path in last:
        path.write_bytes(bytes(160))
    with opened(tmp_path, clock) as store:
        assert everything(store) == before


def test_recovery_after_a_crash_reads_only_what_the_checkpoint_does_not_vouch_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        for n in range(60):
            clock.ms = NOON_MS + n * 1000
            fill(store, 1, first=n)
        safe = store.entries(TOPIC, 0, 28, 1)[0]
    (tmp_path / "abort").touch()
    with opened(tmp_path, clock):
        pass
    assert f"read from {safe.log_offset} on" in caplog.text


def test_a_torn_record_whose_store_time_looks_old_hides_no_lost_entry(tmp_path: Path) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        fill(store, 2)
        clock.ms += 60_000
        torn = message(3)
        store.append(message(2, queue_id=1))
        store.append(torn)
    (tmp_path / "abort").touch()
    (tmp_path / "queues").unlink()  # saved at the stop, which did not happen
    low_bytes_at = torn.log_offset + FIELD_AT["store_ms"] + 4
    damaged(tmp_path / "commitlog" / f"{0:020}", low_bytes_at, "cut")
    damaged(tmp_path / "consumequeue" / TOPIC / "1" / f"{0:020}", ENTRY_BYTES, "cut")
    with opened(tmp_path, clock) as store:
        assert everything(store) == {(TOPIC, 0): [b"body 0"], (TOPIC, 1): [b"body 1", b"body 2"]}


def test_entries_of_a_torn_record_are_dropped_with_their_file(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = fill(store, 17, queues=1)
    assert len(list((tmp_path / "consumequeue" / TOPIC / "0").iterdir())) == 3
    (tmp_path / "abort").touch()
    (tmp_path / "queues").unlink()  # nothing noted what was not on disk
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(sent[16].log_offset + sent[16].size // 2)
        file.write(bytes(sent[16].size))
    with opened(tmp_path) as store:
        assert bodies(store) == [each.body for each in sent[:16]]
        assert len(list((tmp_path / "consumequeue" / TOPIC / "0").iterdir())) == 2


def test_without_its_log_a_store_does_not_drop_its_queues(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 20)
    shutil.rmtree(tmp_path / "commitlog")
    with (
        pytest.raises(StoreCorrupt, match=r"commitlog has no log files, but the queues lead to .* move the folder"),
        opened(tmp_path),
    ):
        pass
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(tmp_path) as store:
        assert store.topics() == []
        store.follow_index()
        assert run_blocking(store.search_by_key(TOPIC, "k1", 1, 0, 1 << 62)).log_offsets == []
    goes_on(tmp_path)


def test_without_its_first_log_file_a_store_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as store:
        fill(store, 100)
    first = tmp_path / "commitlog" / f"{0:020}"
    first.rename(tmp_path / "kept")
    [finding] = [each for each in StoreCheck(StoreConfig(tmp_path)).run().findings if each.path == first]
    assert finding.cure is Cure.BACKUP
    with opened(tmp_path) as store:
        assert store.min_offset(TOPIC, 0) > 0
    assert f"{first} and the log files after it up to log offset 4096 are missing" in caplog.text


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_without_its_last_log_file_a_store_does_not_start(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path) as store:
        fill(store, 100)
    before = files_below(tmp_path)
    last = max((tmp_path / "commitlog").iterdir())
    last.write_bytes(b"") if kind == "empty" else last.unlink()
    with (
        pytest.raises(StoreCorrupt, match=rf"{last} is missing, but .*consumequeue.* byte \d+ leads .* store repair"),
        opened(tmp_path),
    ):
        pass
    last.write_bytes(before[str(last.relative_to(tmp_path))])
    goes_on(tmp_path)


def test_queue_whose_begin_is_gone_is_filled_up(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = fill(store, 120)
    (tmp_path / "commitlog" / f"{0:020}").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(tmp_path) as store:
        left = [each for each in sent if each.log_offset >= 4096]
        first = next(each for each in left if each.queue_id == 0).queue_offset
        assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (first, 60)
        assert bodies(store) == [each.body for each in left if each.queue_id == 0]
        before = everything(store)
    filler = (tmp_path / "consumequeue" / TOPIC / "0" / f"{first // 8 * 160:020}").read_bytes()[:20]
    assert first % 8 == 0 or filler == bytes(8) + bytes.fromhex("7fffffff") + bytes(8)
    with opened(tmp_path) as store:
        assert everything(store) == before


def test_empty_last_segment_of_an_interrupted_roll_is_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 5)
    (tmp_path / "commitlog" / f"{4096:020}").touch()
    (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        assert store.max_offset(TOPIC, 0) == 3
    goes_on(tmp_path)


def test_empty_index_file_of_an_interrupted_start_is_made_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 5)
    for path in (tmp_path / "index").iterdir():
        path.write_bytes(b"")
    (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        store.follow_index()
        assert len(run_blocking(store.search_by_key(TOPIC, "k4", 9, 0, 1 << 62)).log_offsets) == 1
    goes_on(tmp_path)


def test_crash_right_after_a_blank_record_begins_the_next_segment(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        sent = fill(store, 30)
    first_of_second = next(each for each in sent if each.log_offset == 4096)
    (tmp_path / "commitlog" / f"{4096:020}").unlink()
    (tmp_path / "abort").touch()
    with opened(tmp_path) as store:
        assert store.max_log_offset == 4096
        store.append(message(topic="next"))
        assert store.entries("next", 0, 0, 1)[0].log_offset == first_of_second.log_offset
    with opened(tmp_path) as store:
        assert bodies(store, topic="next") == [b"body 0"]


def test_failed_open_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 30)
    (tmp_path / "commitlog" / f"{1 << 20:020}").touch()
    (tmp_path / "commitlog" / f"{1 << 21:020}").write_bytes(b"short")
    before = files_below(tmp_path)
    with pytest.raises(StoreCorrupt, match=f"{1 << 20:020} has 0 bytes"), opened(tmp_path):
        pass
    assert files_below(tmp_path) == before


def test_a_clock_set_back_between_two_runs_is_told_and_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StoppedClock()
    with opened(tmp_path, clock) as store:
        fill(store, 10)
    clock.ms -= 3_600_000
    with opened(tmp_path, clock) as store:
        fill(store, 2, first=10)
        assert len(bodies(store)) == 6
        last = store.message(TOPIC, 0, 5)
        assert last is not None
        assert last.store_ms == NOON_MS
    assert "stored 3600 s after the current time of this machine's clock" in caplog.text


@pytest.mark.parametrize("kind", ["missing", "zero"])
def test_a_queue_without_its_last_file_gets_it_again_after_a_clean_stop(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path) as store:
        fill(store, 50)
        store.append(message(1, topic="deleted"))
        store.delete_topic("deleted")
        fill(store, 10)
    before = files_below(tmp_path / "consumequeue")
    last = sorted((tmp_path / "consumequeue" / TOPIC / "1").iterdir())[-1]
    if kind == "missing":
        last.unlink()
    else:
        last.write_bytes(bytes(last.stat().st_size))
    with opened(tmp_path) as store:
        assert store.max_offset(TOPIC, 1) == 30
        assert store.topics() == [TOPIC]
    assert files_below(tmp_path / "consumequeue") == before


def test_after_a_clean_stop_a_record_with_a_damaged_queue_id_comes_to_no_other_queue(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in range(8):
            store.append(message(number, queue_id=0))
        for number in range(8):
            store.append(last := message(number, queue_id=1))
    path = tmp_path / "commitlog" / f"{0:020}"
    content = bytearray(path.read_bytes())
    content[last.log_offset - last.size + 15] ^= 1  # the queue id of the record before the last one
    path.write_bytes(content)
    with opened(tmp_path) as store:
        assert bodies(store, 0) == [b"body %d" % number for number in range(8)]
