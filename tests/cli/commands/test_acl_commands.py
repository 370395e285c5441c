"""`pyromq acl` against a broker with permissions."""

import json
from contextlib import closing

import pytest
from tests.cli.conftest import Served

SECRETS = {"admin-12": "secret-of-admin", "shop-app": "secret-of-shop"}
FILE = """
globalWhiteRemoteAddresses: [10.9.9.*]
accounts:
- {accessKey: admin-12, secretKey: secret-of-admin, admin: true}
- {accessKey: shop-app, secretKey: secret-of-shop, topicPerms: [orders=PUB], defaultGroupPerm: SUB}
"""


@pytest.fixture
def guarded(tmp_path, monkeypatch):
    folder = tmp_path / "accounts"
    folder.mkdir()
    (folder / "plain_acl.yml").write_text(FILE)
    with closing(Served(permissions=True, permissions_path=folder)) as served:
        monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)
        monkeypatch.setenv("PYROMQ_ACCESS_KEY", "admin-12")
        monkeypatch.setenv("PYROMQ_SECRET_KEY", "secret-of-admin")
        yield folder / "plain_acl.yml"


def test_accounts_are_listed_without_secrets(guarded, cli):
    done = cli("acl", "list", "-o", "json")
    rows = json.loads(done.out)
    assert [(row["account"], row["admin"], row["topics"], row["addresses"]) for row in rows] == [
        ("admin-12", True, "", ""),
        ("shop-app", False, "orders=PUB", ""),
        ("", True, "", "10.9.9.*"),
    ]
    assert "secret" not in done.out + done.err


def test_an_account_is_made_changed_and_deleted(guarded, cli, tmp_path):
    (tmp_path / "secret").write_text("secret-of-another\n")
    made = cli("acl", "set", "another", "--new-secret", f"@{tmp_path / 'secret'}", "--topic", "orders=SUB")
    assert (made.code, made.out) == (0, "account another is set\n")
    assert cli("acl", "set", "another", "--topic", "bills=PUB", "--other-groups", "SUB").code == 0
    assert cli("acl", "set", "another", "--topic", "orders=").code == 0
    row = next(row for row in json.loads(cli("acl", "list", "-o", "json").out) if row["account"] == "another")
    assert (row["topics"], row["other_groups"], row["admin"]) == ("bills=PUB", "SUB", False)
    assert "secret-of-another" in guarded.read_text()
    assert cli("acl", "delete", "another", "--yes").code == 0
    assert "another" not in guarded.read_text()
    assert cli("acl", "delete", "another", "--yes").code == 1


def test_the_last_right_is_removed(guarded, cli):
    assert cli("acl", "set", "shop-app", "--topic", "orders=").code == 0
    row = next(row for row in json.loads(cli("acl", "list", "-o", "json").out) if row["account"] == "shop-app")
    assert row["topics"] == ""


def test_an_empty_secret_is_refused_and_not_taken_for_no_change(guarded, cli, tmp_path):
    before = guarded.read_text()
    (tmp_path / "secret").write_text("\n")
    done = cli("acl", "set", "shop-app", "--new-secret", f"@{tmp_path / 'secret'}")
    assert (done.code, done.out) == (2, "")
    assert f"the file {tmp_path / 'secret'} is empty" in done.err
    assert guarded.read_text() == before


@pytest.mark.parametrize("written", [b"\xef\xbb\xbfsecret-of-another\r\n", b"secret-of-another\r\n"])
def test_a_secret_is_read_as_editors_write_it(guarded, cli, tmp_path, written):
    (tmp_path / "secret").write_bytes(written)
    assert cli("acl", "set", "another", "--new-secret", f"@{tmp_path / 'secret'}").code == 0
    assert cli("acl", "set", "piped-app", stdin=written).code == 0
    assert guarded.read_text().count("secretKey: secret-of-another\n") == 2


def test_a_new_account_asks_for_its_secret(guarded, cli):
    made = cli("acl", "set", "another", stdin=b"secret-of-another\n")
    assert made.code == 0, made.err
    assert "secret-of-another" not in made.out + made.err
    assert "secret-of-another" in guarded.read_text()


@pytest.mark.parametrize(
    ("account", "topic", "send", "read", "because"),
    [
        ("shop-app", "orders", True, False, "topicPerms: orders=PUB"),
        ("shop-app", "bills", False, False, "defaultTopicPerm: DENY"),
        ("admin-12", "bills", True, True, "admin"),
    ],
)
def test_what_an_account_may_do_is_checked(guarded, cli, account, topic, send, read, because):
    (row,) = json.loads(cli("acl", "check", account, topic, "-o", "json").out)
    assert (row["send"], row["read"], row["because"]) == (send, read, because)


def test_an_unknown_account_cannot_be_checked(guarded, cli):
    done = cli("acl", "check", "nobody-12", "orders")
    assert (done.code, done.err) == (1, "error: account nobody-12 does not exist\n")


def test_who_is_no_administrator_is_told_so(guarded, cli, monkeypatch):
    monkeypatch.setenv("PYROMQ_ACCESS_KEY", "shop-app")
    monkeypatch.setenv("PYROMQ_SECRET_KEY", "secret-of-shop")
    done = cli("acl", "list")
    assert done.code == 1
    assert "account shop-app is not an administrator" in done.err


def test_a_request_without_an_account_is_told_the_options(guarded, cli, monkeypatch):
    monkeypatch.delenv("PYROMQ_ACCESS_KEY")
    monkeypatch.delenv("PYROMQ_SECRET_KEY")
    for command in (("topic", "list"), ("send", "orders", "hello"), ("doctor",)):
        refused = cli(*command)
        assert refused.code == 1
        assert "--access-key and --secret-key @FILE" in refused.out + refused.err


def test_wrong_usage_is_refused(guarded, cli):
    assert cli("acl", "set", "another", "--topic", "orders=PUP").code == 2
    assert cli("acl", "set", "another", "--topic", "orders").code == 2
    assert "process list" in cli("acl", "set", "another", "--new-secret", "written-out").err


def test_a_broker_without_permissions_says_so(cli, served):
    done = cli("acl", "list")
    assert (done.code, "has no accounts: its setting aclEnable is false" in done.err) == (1, True)
