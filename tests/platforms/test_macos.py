"""The module of macOS, with that system's names; Linux acts what Apple's kernel would do. See `lane`."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.platforms import lane

from pyromq.platforms import linux, macos

PAGE = 16 << 10
LOCKS = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1)"


@pytest.fixture(autouse=True)
def acted(monkeypatch):
    lane.calls.clear()
    for name in ("os", "resource", "time", "socket"):
        monkeypatch.setattr(macos, name, lane.Restricted(getattr(macos, name), "darwin", {}))
    monkeypatch.setattr(macos, "fcntl", lane.Restricted(fcntl, "darwin", {"fcntl": lane._fcntl_of_macos}))
    monkeypatch.setattr(macos, "_flush_pages", macos._flush_pages)
    monkeypatch.setattr(macos, "libc", macos.libc)
    monkeypatch.setattr(macos, "_locked", {})
    lane._act_macos(macos)


@pytest.fixture
def file(tmp_path):
    """The path of a file, and a function that opens it."""
    path = tmp_path / "file"
    opened = []

    def open_file():
        opened.append(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        return opened[-1]

    yield path, open_file
    for descriptor in opened:
        try:
            macos.close(descriptor)
        except OSError as error:
            assert error.errno == errno.EBADF  # the test has closed it


def is_locked_for_others(path: Path) -> bool:
    return subprocess.run([sys.executable, "-c", LOCKS, str(path)], capture_output=True).returncode != 0


def test_a_flush_reaches_the_disk_and_takes_mapped_pages_along(file, monkeypatch):
    _, open_file = file
    descriptor = open_file()
    os.ftruncate(descriptor, PAGE)
    flushed = []
    act = macos._flush_pages
    monkeypatch.setattr(macos, "_flush_pages", lambda *given: (flushed.append(given[1]), act(*given))[1])
    memory = macos.map_file(descriptor, PAGE, scattered=True)
    memory[:4] = b"text"
    macos.sync(descriptor)
    assert (flushed, lane.calls) == ([PAGE], [lane.F_FULLFSYNC])
    del memory
    macos.sync(descriptor)
    assert flushed == [PAGE]  # the file is no longer mapped
    assert os.pread(descriptor, 4, 0) == b"text"


def test_a_failed_flush_of_mapped_pages_is_an_error(file, monkeypatch):
    _, open_file = file
    descriptor = open_file()
    os.ftruncate(descriptor, PAGE)
    memory = macos.map_file(descriptor, PAGE, scattered=False)
    monkeypatch.setattr(macos, "_flush_pages", lambda *_: -1)
    with pytest.raises(OSError):
        macos.sync(descriptor)
    del memory


def test_a_drive_without_full_flush_gets_a_plain_one(file, monkeypatch):
    _, open_file = file
    descriptor = open_file()
    plain = []

    def refuse(descriptor, command, argument=0):
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(macos, "fcntl", lane.Restricted(fcntl, "darwin", {"fcntl": refuse}))
    monkeypatch.setattr(macos, "os", lane.Restricted(os, "darwin", {"fsync": plain.append}))
    macos.sync(descriptor)
    assert plain == [descriptor]


def test_a_broken_drive_is_an_error(file, monkeypatch, tmp_path):
    _, open_file = file

    def broken(descriptor, command, argument=0):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(macos, "fcntl", lane.Restricted(fcntl, "darwin", {"fcntl": broken}))
    with pytest.raises(OSError, match="Input/output"):
        macos.sync(open_file())
    with pytest.raises(OSError, match="Input/output"):
        macos.sync_folder(tmp_path)
    with pytest.raises(OSError, match="Input/output"):
        macos.allocate(open_file(), 0, PAGE)


@pytest.mark.parametrize(
    ("position", "size"), [(0, 10 * PAGE), (3 * PAGE + 5, PAGE), (PAGE, 2 * PAGE), (9 * PAGE, PAGE)]
)
def test_space_is_allocated_in_holes_and_what_was_written_stays(file, position, size):
    path, open_file = file
    descriptor = open_file()
    os.ftruncate(descriptor, 10 * PAGE)
    os.pwrite(descriptor, b"x" * 100, 2 * PAGE)
    macos.allocate(descriptor, position, size)
    assert linux.next_hole(descriptor, position) >= position + size
    content = path.read_bytes()
    assert content == bytes(2 * PAGE) + b"x" * 100 + bytes(8 * PAGE - 100)
    assert lane.calls == []  # the file does not grow


def test_a_file_that_grows_asks_for_space_first(file):
    path, open_file = file
    descriptor = open_file()
    os.pwrite(descriptor, b"x" * 100, 0)
    macos.allocate(descriptor, 50, 2 * PAGE)
    assert lane.calls == [lane.F_PREALLOCATE]
    assert path.read_bytes() == b"x" * 100 + bytes(2 * PAGE - 50)
    assert linux.next_hole(descriptor, 0) >= 2 * PAGE


def test_a_lock_excludes_other_processes_and_other_stores_of_this_one(file):
    path, open_file = file
    first, second = open_file(), open_file()
    macos.lock(first)
    assert is_locked_for_others(path)
    with pytest.raises(BlockingIOError):
        macos.lock(second)
    macos.lock(first)  # again: no harm
    assert macos.lock_holder(second) == os.getpid()


def test_closing_another_descriptor_of_the_file_does_not_lose_the_lock(file):
    path, open_file = file
    first, second = open_file(), open_file()
    macos.lock(first)
    with pytest.raises(BlockingIOError):
        macos.lock(second)
    macos.close(second)
    assert is_locked_for_others(path)
    macos.close(first)
    assert not is_locked_for_others(path)


def test_a_lock_is_free_once_its_holder_has_closed_the_file(file):
    path, open_file = file
    first = open_file()
    macos.lock(first)
    macos.close(first)
    second = open_file()
    macos.lock(second)
    assert is_locked_for_others(path)


def test_the_process_that_holds_a_lock_is_named(file):
    path, open_file = file
    code = LOCKS.replace("fcntl.lockf(open(", "f = open(").replace(", 'r+b'),", ", 'r+b'); fcntl.lockf(f,")
    program = [sys.executable, "-c", code + "; print(flush=True); input()", str(path)]
    descriptor = open_file()
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        with pytest.raises(OSError):
            macos.lock(descriptor)
        assert macos.lock_holder(descriptor) == process.pid
        process.stdin.write("\n")
    assert macos.lock_holder(descriptor) == 0


def test_a_read_that_may_block_is_no_error(file):
    _, open_file = file
    descriptor = open_file()
    os.pwrite(descriptor, b"0123456789", 0)
    assert macos.read_now(descriptor, 4, 3) == b"3456"
    assert macos.read_now(descriptor, 8, 3) is None


def test_a_boot_is_named_or_unknown(monkeypatch):
    assert macos.boot_id() == linux.boot_id() != ""
    monkeypatch.setattr(macos.libc, "sysctlbyname", lambda *_: -1)
    assert macos.boot_id() == "unknown"


@pytest.mark.parametrize(
    ("limits", "set_to"),
    [((256, -1), (10_240, -1)), ((256, 1024), (1024, 1024)), ((20_000, -1), None), ((-1, -1), None)],
)
def test_the_limit_of_descriptors_is_raised_as_far_as_macos_lets(limits, set_to, monkeypatch):
    done = []
    monkeypatch.setattr(macos.resource._real, "getrlimit", lambda _: limits)
    monkeypatch.setattr(macos.resource._real, "setrlimit", lambda _, given: done.append(given))
    macos.raise_descriptor_limit()
    assert done == ([set_to] if set_to else [])


def test_a_file_system_without_holes_has_data_everywhere(file, monkeypatch):
    from pyromq.platforms import posix

    _, open_file = file
    descriptor = open_file()
    os.ftruncate(descriptor, PAGE)

    def refuse(descriptor, position, whence):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(posix.os, "lseek", refuse)
    assert (posix.next_data(descriptor, 7), posix.next_hole(descriptor, 7)) == (7, PAGE)
    assert posix.next_hole(descriptor, PAGE) is None
