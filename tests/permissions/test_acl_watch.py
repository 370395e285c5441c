"""Changed files come into force within a second; broken ones do not, and are complained of."""

import errno
import logging
import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.store.synced_names import SyncedNames, only_on_linux

from pyromq.errors import UsageError
from pyromq.permissions.acl_files import AclFolder
from pyromq.permissions.permissions import AclWatch, Permissions
from pyromq.store.worker import AtOnce


def account(name):
    return f"- {{accessKey: {name}, secretKey: secret-of-{name}}}\n"


class Files:
    """A folder, what is in force of it, and a watch that looks when it is told to."""

    def __init__(self, folder):
        self.folder = folder
        self.permissions = Permissions()
        self.watch = AclWatch(AclFolder(folder), self.permissions, AtOnce())

    def write(self, name, *accounts, text=None):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("accounts:\n" + "".join(map(account, accounts)) if text is None else text)

    def look(self, times=3):
        for _ in range(times):
            self.watch.check()

    @property
    def accounts(self):
        return sorted(self.permissions.in_force.accounts)


@pytest.fixture
def files(tmp_path):
    files = Files(tmp_path)
    files.write("plain_acl.yml", "first-1")
    files.watch.load()
    return files


def test_a_folder_without_files_lets_nobody_in_and_says_so(tmp_path, caplog):
    Files(tmp_path / "none").watch.load()
    assert "all requests are refused until" in caplog.text


def test_all_files_count(files):
    files.write("acl/b.yml", "second-2")
    files.write("acl/deep/c.yaml", "third-3")
    files.write("acl/notes.txt", "fourth-4")
    files.look()
    assert files.accounts == ["first-1", "second-2", "third-3"]


def test_the_first_file_of_an_account_counts(files, caplog):
    files.write("acl/b.yml", text="accounts: [{accessKey: first-1, secretKey: another-secret}]")
    files.look()
    assert files.permissions.in_force.accounts["first-1"].secret_key == "another-secret"
    assert "plain_acl.yml: account first-1 is in another file" in caplog.text


def test_a_change_counts_when_it_rests(files):
    files.write("plain_acl.yml", "first-1", "second-2")
    version = files.permissions.in_force.version
    files.look(1)
    assert files.accounts == ["first-1"]
    files.look(1)
    assert files.accounts == ["first-1", "second-2"]
    assert files.permissions.in_force.version == version + 1


def test_without_a_change_nothing_is_read(files):
    version = files.permissions.in_force.version
    files.look(5)
    assert files.permissions.in_force.version == version


def test_an_editor_that_is_still_writing_takes_nobody_away(files):
    files.write("plain_acl.yml", text="")
    files.look(1)
    files.write("plain_acl.yml", "first-1", "second-2")
    files.look(1)
    assert files.accounts == ["first-1"]
    files.look(1)
    assert files.accounts == ["first-1", "second-2"]


def test_accounts_of_a_removed_file_are_gone(files, caplog):
    (files.folder / "plain_acl.yml").unlink()
    files.look(5)
    assert files.accounts == []
    assert f"all requests are refused until {files.folder / 'plain_acl.yml'} has an account" in caplog.text
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_a_broken_file_keeps_what_was_good_and_says_so_once(files, caplog):
    files.write("acl/b.yml", "second-2")
    files.look()
    files.write("acl/b.yml", text="accounts: [}")
    files.look(5)
    assert files.accounts == ["first-1", "second-2"]
    assert "b.yml, line 1: no YAML" in files.permissions.fault
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    files.write("acl/b.yml", "third-3")
    files.look()
    assert (files.accounts, files.permissions.fault) == (["first-1", "third-3"], None)


def test_a_file_that_becomes_readable_counts_though_it_does_not_change(files, monkeypatch, caplog):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        files.write("plain_acl.yml", "second-2")
        files.look(5)
    assert "plain_acl.yml: cannot be read: Permission denied" in files.permissions.fault
    assert len(caplog.records) == 1
    files.look(1)
    assert (files.accounts, files.permissions.fault) == (["second-2"], None)


def test_a_file_of_the_same_size_and_time_that_replaces_another_counts(files):
    path = files.folder / "plain_acl.yml"
    before = path.stat()
    files.write("new", "first-2")
    os.utime(files.folder / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (files.folder / "new").replace(path)
    files.look()
    assert files.accounts == ["first-2"]


def test_a_broken_file_keeps_a_broker_from_starting(tmp_path):
    files = Files(tmp_path)
    files.write("plain_acl.yml", text="accounts: [}")
    with pytest.raises(UsageError, match=r"plain_acl\.yml, line 1: no YAML"):
        files.watch.load()


def test_one_look_at_a_time(files):
    waiting = Future()
    asked = []

    class Slow:
        def submit(self, work):
            asked.append(work)
            return waiting

        def shutdown(self):
            pass

    watch = AclWatch(AclFolder(files.folder), files.permissions, Slow())
    watch.check()
    watch.check()
    assert len(asked) == 1
    waiting.set_result(None)
    watch.check()
    assert len(asked) == 2


@only_on_linux
def test_adopted_files_are_written_and_deleted_durably(files, tmp_path_factory, monkeypatch):
    files.write("acl/b.yml", "second-2")
    files.look()
    master = AclFolder(tmp_path_factory.mktemp("master"))
    master.write(
        master.folder / "acl" / "new" / "c.yml", {"accounts": [{"accessKey": "third-3", "secretKey": "1234567"}]}
    )
    watch = AclWatch(master, Permissions(), AtOnce())
    watch.load()
    names = SyncedNames(files.folder, monkeypatch)
    files.watch.adopt(watch.encode()).result()
    assert files.accounts == ["third-3"]
    assert sorted(path.name for path in files.folder.rglob("*.yml")) == ["c.yml"]
    assert names.missing() == set()
