"""A bit that flipped in a record's head, read again after a crash: it costs that message at most, and is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.making import TOPIC, crashed_copy, fill, opened

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage

COUNT = 600
QUEUE_ID_AT, QUEUE_OFFSET_AT = 12, 20


@pytest.fixture
def crashed(tmp_path: Path) -> tuple[Path, list[StoredMessage]]:
    with opened(tmp_path / "sound", segment_bytes=1 << 20) as store:
        messages = fill(store, COUNT)
        return crashed_copy(tmp_path / "sound", tmp_path / "crashed"), messages


def flip(root: Path, position: int, bit: int) -> None:
    path = min((root / "commitlog").iterdir())
    content = bytearray(path.read_bytes())
    content[position + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.parametrize("bit", range(10))
@pytest.mark.parametrize("number", [257, 511, COUNT - 3])
def test_a_damaged_queue_offset_costs_that_message_at_most(
    crashed: tuple[Path, list[StoredMessage]], bit: int, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    root, messages = crashed
    flip(root, messages[number].log_offset + QUEUE_OFFSET_AT, bit)
    with opened(root, segment_bytes=1 << 20) as store:
        for queue_id in (0, 1):
            expected = [each.body for each in messages if each.queue_id == queue_id]
            seen = bodies_of(store, queue_id)
            assert set(seen) >= set(expected) - {messages[number].body}
            assert seen == sorted(seen, key=lambda body: int(body.split()[1]))
    assert f"at {messages[number].log_offset}" in caplog.text or "the log has lost" in caplog.text


@pytest.mark.parametrize("number", [257, 511])
def test_a_damaged_queue_id_costs_that_message_at_most(
    crashed: tuple[Path, list[StoredMessage]], number: int, caplog: pytest.LogCaptureFixture
) -> None:
    root, messages = crashed
    flip(root, messages[number].log_offset + QUEUE_ID_AT - 4, 0)
    with opened(root, segment_bytes=1 << 20) as store:
        for queue_id in (0, 1):
            expected = [each.body for each in messages if each.queue_id == queue_id and each is not messages[number]]
            assert set(bodies_of(store, queue_id)) >= set(expected)
    assert f"at {messages[number].log_offset}" in caplog.text or "the log has lost" in caplog.text


@pytest.mark.parametrize("size", [0, 90, 93, 1 << 19, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF])
def test_a_damaged_size_hides_no_records_behind_it(tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path, segment_bytes=1 << 20) as store:
        messages = fill(store, 20)
        store._log.memory[messages[7].log_offset :][:4] = size.to_bytes(4)
        found = [log_offset for log_offset, _ in store.records_from(0)]
        others = [each.log_offset for each in messages if each is not messages[7]]
        assert [log_offset for log_offset in found if log_offset != messages[7].log_offset] == others
    assert "no record begins here" in caplog.text


def bodies_of(store, queue_id):  # type: ignore[no-untyped-def]
    """Return the bodies of a queue, without those that are lost."""
    found = []
    for offset in range(store.min_offset(TOPIC, queue_id), store.max_offset(TOPIC, queue_id)):
        try:
            message = store.message(TOPIC, queue_id, offset)
        except StoreCorrupt:
            continue
        if message is not None:
            found.append(message.body)
    return found
