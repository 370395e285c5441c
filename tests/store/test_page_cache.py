"""What of mapped files is in memory: asked for, and loaded, for views in any order, of any files."""

import mmap

import pytest
from tests.broker.consuming.cold import forget

from pyromq.store import disk
from pyromq.store.disk import address_of, stretches

MEGABYTE = 1 << 20
SIZES = (49 * MEGABYTE, 9 * MEGABYTE)


@pytest.fixture
def paths(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    for path, size in zip(paths, SIZES, strict=True):
        path.write_bytes(bytes(size))
    return paths


@pytest.fixture
def mapped(paths):
    """Both files, of which nothing is in memory."""
    forget(paths)
    found = []
    for path in paths:
        with path.open("r+b") as file:
            found.append(memoryview(mmap.mmap(file.fileno(), 0)))
            found[-1].obj.madvise(mmap.MADV_RANDOM)
    return found


def places(first, second):
    """Such as queues have that began at different times: the first and the last lie side by side, others do not."""
    return [
        first[MEGABYTE : MEGABYTE + 100],
        first[48 * MEGABYTE : 48 * MEGABYTE + 100],
        second[8 * MEGABYTE : 8 * MEGABYTE + 100],
        first[MEGABYTE + 300_000 : MEGABYTE + 300_100],
    ]


def test_each_view_lies_in_a_stretch(mapped):
    views = places(*mapped)
    found = stretches(views)
    assert sum(size for _, size in found) < MEGABYTE
    for view in views:
        place = address_of(view)
        assert any(start <= place and place + len(view) <= start + size for start, size in found)


@pytest.mark.parametrize("step", [1, -1])
def test_neighbours_of_a_file_are_one_stretch(mapped, step):
    views = [mapped[0][at : at + 100] for at in range(0, MEGABYTE - 100, 50_000)][::step]
    [(start, size)] = stretches(views)
    assert start == address_of(mapped[0])
    assert MEGABYTE - 100_000 < size <= MEGABYTE
    assert len(stretches([*views, mapped[1][:100], mapped[0][:100]])) == 3


def test_what_is_loaded_is_there_whatever_lies_between(mapped):
    views = places(*mapped)
    if disk.is_loaded(views[1:2]):
        pytest.skip("this file system keeps its files in memory")
    assert not disk.is_loaded(views)
    disk.load([views[0], views[3]])
    assert not disk.is_loaded(views)
    disk.load(views)
    assert [disk.is_loaded([view]) for view in views] == [True] * 4
    assert disk.is_loaded(views)
    assert disk.is_loaded([])
