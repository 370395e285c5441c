"""ListAccounts over the wire: listed without secrets, changed in their files and in force when that is answered."""

import json
import stat

import pytest

from pyromq.broker.broker import Broker
from pyromq.permissions.acl_files import parse_acl_file
from pyromq.remoting.headers import (
    AccountsVersion,
    AccountsVersionResponse,
    BrokerState,
    DeleteAccount,
    ListAccounts,
    SaveAccount,
    SaveWhiteList,
)

from ..headers import send_header
from .asking import secret_of

NEW = SaveAccount("another-1", "secret-of-another-1", topic_perms="orders=PUB, more=PUB|SUB", group_perms="c=SUB")


def accounts_in(path):
    return {account.access_key: account for account in parse_acl_file(path, path.read_bytes()).accounts}


async def test_messages_go_through_a_guarded_broker(account):
    await (await account("admin-1")).create_topic("orders", queues=1)
    writer, reader = await account("writer-1"), await account("reader-1")
    await writer.send("orders", b"hello")
    assert await reader.bodies() == [b"hello"]
    assert (await writer.pull()).code == 1
    refused = await reader.channel.call_soon(ListAccounts(), timeout=30)
    assert "account reader-1 is not an administrator" in refused.remark


@pytest.mark.parametrize(
    "change",
    [
        SaveAccount("writer-1", topic_perms="orders=DENY"),
        SaveAccount("writer-1", "another-secret-1"),
        DeleteAccount("writer-1"),
    ],
    ids=["right", "secret", "gone"],
)
async def test_what_was_let_pass_is_refused_after_a_change(account, change):
    admin, writer = await account("admin-1"), await account("writer-1")
    await admin.create_topic("orders", queues=1)
    for _ in range(3):
        await writer.send("orders")
    await admin.ask(change)
    assert (await writer.ask(send_header(topic="orders"), b"x", code=1)).remark.startswith("AclException: ")


async def test_a_burst_of_which_some_is_refused(account):
    await (await account("admin-1")).create_topic("orders", queues=1)
    writer = await account("writer-1")
    headers = [send_header(topic=topic) for topic in ("orders", "others", "orders", "others")]
    answers = [writer.channel.call_soon(header, b"x", timeout=30) for header in headers]
    assert [(await answer).code for answer in answers] == [0, 1, 0, 1]


async def test_a_stranger_gets_nothing(account):
    stranger = await account()
    for header in (
        ListAccounts(),
        AccountsVersion(),
        BrokerState(),
        NEW,
        DeleteAccount("writer-1"),
        SaveWhiteList("*"),
    ):
        answer = await stranger.ask(header, code=1)
        assert "the request names no account" in answer.remark


async def test_accounts_are_listed_without_their_secrets(account, acl_file):
    acl_file.write_text(acl_file.read_text() + "globalWhiteRemoteAddresses: [10.9.9.*]\n")
    admin = await account("admin-1")
    await admin.ask(SaveWhiteList("10.8.8.8,10.7.*.*"))
    table = await admin.body(ListAccounts())
    assert [(entry.access_key, entry.secret_key, entry.admin) for entry in table.accounts] == [
        ("admin-1", "********", True),
        ("writer-1", "********", False),
        ("reader-1", "********", False),
    ]
    assert (table.accounts[2].topic_perms, table.accounts[2].group_perms) == (["orders=SUB"], ["c=SUB"])
    assert table.white_list == ["10.8.8.8", "10.7.*.*"]


async def test_a_new_account_counts_when_the_answer_comes(account, acl_file):
    admin = await account("admin-1")
    await admin.create_topic("orders")
    await admin.ask(NEW)
    await (await account("another-1")).send("orders")
    made = accounts_in(acl_file)["another-1"]
    assert made.rights == {"orders": 4, "more": 12, "%RETRY%c": 8}
    assert list(accounts_in(acl_file)) == ["admin-1", "writer-1", "reader-1", "another-1"]


async def test_a_change_keeps_what_it_does_not_name(account, acl_file):
    admin = await account("admin-1")
    await admin.ask(NEW)
    await admin.ask(SaveAccount("another-1", default_topic_perm="SUB", group_perms=""))
    await admin.ask(SaveAccount("another-1", "********", white_remote_address="10.1.1.1"))  # as it is listed
    changed = accounts_in(acl_file)["another-1"]
    assert (changed.secret_key, changed.rights) == ("secret-of-another-1", {"orders": 4, "more": 12})
    assert (changed.default_topic_right, changed.from_addresses.text) == (8, "10.1.1.1")


async def test_an_account_of_another_file_is_changed_there(account, acl_file, guarded):
    other = acl_file.parent / "acl" / "team.yml"
    other.parent.mkdir()
    other.write_text("team: payments\naccounts:\n- {accessKey: team-12, secretKey: secret-of-team-12}\n")
    admin = await account("admin-1")
    await admin.ask(SaveAccount("team-12", topic_perms="orders=PUB"))
    assert accounts_in(other)["team-12"].rights == {"orders": 4}
    assert "team: payments" in other.read_text()
    assert list(accounts_in(acl_file)) == ["admin-1", "writer-1", "reader-1"]


async def test_a_deleted_account_is_refused(account, acl_file):
    admin, writer = await account("admin-1"), await account("writer-1")
    await admin.ask(DeleteAccount("writer-1"))
    answer = await writer.ask(BrokerState(), code=1)
    assert "account writer-1 is unknown" in answer.remark
    assert list(accounts_in(acl_file)) == ["admin-1", "reader-1"]


@pytest.mark.parametrize(
    ("header", "code", "complaint"),
    [
        (SaveAccount("another-1"), 209, "account 'another-1' is new and needs a secret key"),
        (SaveAccount("short", "secret-of-short"), 209, "accessKey has 5 characters"),
        (SaveAccount("another-1", "short"), 209, "secretKey has 5 characters"),
        (SaveAccount("another-1", "1234567", topic_perms="orders"), 209, "write NAME=PUB|SUB"),
        (SaveAccount("another-1", "1234567", topic_perms="orders=PUP"), 209, "'PUP' is not a right"),
        (SaveAccount("another-1", "1234567", default_group_perm="sub"), 209, "'sub' is not a right"),
        (SaveAccount("another-1", "1234567", white_remote_address="x"), 209, "'x' is not an address"),
        (DeleteAccount("another-1"), 210, "account 'another-1' does not exist"),
        (SaveWhiteList("x"), 211, "'x' is not an address"),
        (SaveWhiteList("*", "/etc/passwd"), 211, "is no accounts file"),
        (SaveWhiteList("*", "plain_acl.yml"), 211, "is no accounts file"),
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(account, acl_file, header, code, complaint):
    before = acl_file.read_bytes()
    answer = await (await account("admin-1")).ask(header, code=code)
    assert complaint in answer.remark
    assert acl_file.read_bytes() == before


async def test_a_broken_file_is_not_written_over(account, acl_file):
    acl_file.write_text("accounts: [}")
    answer = await (await account("admin-1")).ask(NEW, code=209)
    assert "plain_acl.yml, line 1: no YAML" in answer.remark
    assert acl_file.read_text() == "accounts: [}"


async def test_the_version_counts_changes(account, acl_file, clock):
    admin = await account("admin-1")
    await admin.ask(NEW)
    await admin.ask(DeleteAccount("another-1"))
    answer = (await admin.ask(AccountsVersion())).header(AccountsVersionResponse)
    version = {"counter": 2, "timestamp": clock.now_ms()}
    assert json.loads(answer.version) == version
    assert json.loads(answer.all_acl_file_version) == {str(acl_file): version}
    assert (answer.broker_name, answer.cluster_name) == ("broker-a", "DefaultCluster")


async def test_a_new_file_is_for_its_owner_alone_and_an_old_one_keeps_its_mode(account, acl_file):
    acl_file.chmod(0o640)
    admin = await account("admin-1")
    await admin.ask(NEW)
    assert stat.S_IMODE(acl_file.stat().st_mode) == 0o640
    acl_file.unlink()
    await admin.ask(NEW)
    assert stat.S_IMODE(acl_file.stat().st_mode) == 0o600


async def test_no_secret_is_logged(account, caplog):
    caplog.set_level("DEBUG")
    admin = await account("admin-1")
    await admin.ask(NEW)
    await (await account("another-1", "wrong-secret")).ask(BrokerState(), code=1)
    assert "another-1" in caplog.text
    assert "secret-of-another-1" not in caplog.text
    assert "wrong-secret" not in caplog.text


async def test_refusals_and_broken_files_are_figures_of_the_broker(account, guarded, acl_file):
    await (await account()).ask(BrokerState(), code=1)
    guarded_permissions = await (await account("admin-1")).body(BrokerState())
    assert guarded_permissions.table["pyromqRefused.aclEnable"] == "1"


async def test_the_audit_log_names_the_account(config, clock, acl_file, account_at):
    config.permissions = config.audit_log = True
    async with Broker(config, clock) as broker:
        await (await account_at(broker, "admin-1")).ask(NEW)
        await (await account_at(broker, "writer-1")).ask(NEW, code=1)
    lines = [json.loads(line) for line in (config.data / "audit" / "audit.log").read_text().splitlines()]
    assert [(line["account"], line["outcome"]) for line in lines] == [
        ("admin-1", "SUCCESS"),
        ("writer-1", "SYSTEM_ERROR"),
    ]
    assert lines[0]["fields"]["secretKey"] == "***"
    assert secret_of("another-1") not in str(lines)
