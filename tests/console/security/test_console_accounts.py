"""Who may sign in, and do what: passwords, roles, tokens of forms, tries, hosts, headers, the audit log."""

import errno
import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import argon2
import httpx
import pytest
from tests.console.conftest import PASSWORD, browsing

from pyromq.console.console import Console, check_protection
from pyromq.console.security import console_accounts as accounts_of
from pyromq.console.security import sessions
from pyromq.console.security.console_accounts import ConsoleAccounts, Role
from pyromq.console.security.console_audit_log import ConsoleAuditLog
from pyromq.console.security.sessions import SignInFailures
from pyromq.errors import UsageError
from pyromq.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
async def signed(config, cluster, clock):
    """A console with an account of each role; nobody is signed in."""
    config.data.mkdir(parents=True)
    accounts = ConsoleAccounts(config.data / "accounts.json")
    for role in reversed(Role):  # the first account is an administrator's
        accounts.save(role.text, role=role.text, password=PASSWORD)
    async with browsing(config, clock=clock) as browser:
        yield browser


def test_passwords_are_hashed_at_the_cost_that_argon2_advises(tmp_path, monkeypatch):
    monkeypatch.setattr(accounts_of, "PasswordHasher", argon2.PasswordHasher)  # others in tests are cheap
    account = ConsoleAccounts(tmp_path / "accounts.json").save("ann", role="admin", password=PASSWORD)
    assert account.password_hash.startswith("$argon2id$v=19$m=65536,t=3,p=4$")


async def test_nothing_is_shown_to_who_is_not_signed_in(signed):
    for path in ("/", "/topics", "/messages?topic=x", "/accounts", "/message/a/b/0/0"):
        answer = await signed.client.get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/sign-in")
    answer = await signed.client.post("/new-topic", data={"name": "x"}, follow_redirects=False)
    assert answer.headers["location"].split("?")[0] == "/sign-in"


async def test_who_signs_in_goes_where_they_wanted_to(signed):
    page = await signed.client.get("/topics?sort=-messages")
    assert 'name="next" value="/topics?sort=-messages"' in page.text
    answer = await signed.client.post(
        "/sign-in", data={"name": "viewer", "password": PASSWORD, "next": "/topics?sort=-messages"}
    )
    assert str(answer.url).endswith("/topics?sort=-messages")


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"]
)
async def test_signing_in_leads_nowhere_else(signed, elsewhere):
    fields = {"name": "viewer", "password": PASSWORD, "next": elsewhere}
    answer = await signed.client.post("/sign-in", data=fields, follow_redirects=False)
    assert answer.headers["location"] == "/"


async def test_wrong_names_and_passwords_are_told_alike_and_slowed_down(signed):
    known = await signed.sign_in("viewer", "wrong password", status=401)
    unknown = await signed.sign_in("nobody", "wrong password", status=401)
    assert known.replace('value="viewer"', "") == unknown.replace('value="nobody"', "")
    for _ in range(4):
        await signed.sign_in("viewer", "wrong password", status=401)
    assert "Too many failed sign-ins" in await signed.sign_in("viewer", PASSWORD, status=429)


@pytest.fixture
async def proxied(signed):
    """A console behind a proxy on this machine, which `httpx` plays."""
    signed.console.config = replace(signed.console.config, behind_tls=True)
    return signed


async def try_from(browser, forwarded, name, password="wrong password"):
    headers = {"x-forwarded-for": forwarded} if forwarded is not None else {}
    form = {"name": name, "password": password}
    answer = await browser.client.post("/sign-in", data=form, headers=headers, follow_redirects=False)
    return answer.status_code


@pytest.mark.parametrize("forwarded", ["198.51.100.7", "2001:db8::7", None])
async def test_a_stranger_behind_the_proxy_locks_nobody_else_out(proxied, forwarded):
    for _ in range(30):
        last = await try_from(proxied, forwarded, "viewer")
    assert last == 429
    assert await try_from(proxied, "203.0.113.5", "viewer", PASSWORD) == 303
    assert await try_from(proxied, forwarded, "operator", PASSWORD) == 303
    assert await try_from(proxied, forwarded, "viewer", PASSWORD) == 429


@pytest.mark.parametrize(
    "made_up",
    [
        "{}, 198.51.100.7",
        "203.0.113.{}, 198.51.100.7:{}",
        "2001:db8::1, ::ffff:198.51.100.7",
        "[::1], [198.51.100.7]:80",
    ],
)
async def test_only_what_the_proxy_added_is_read(proxied, made_up):
    for number in range(5):
        await try_from(proxied, made_up.replace("{}", str(number)), "viewer")
    assert await try_from(proxied, "198.51.100.7", "viewer", PASSWORD) == 429
    assert {each.address for each in proxied.console.audit.recent()} == {"198.51.100.7"}


@pytest.mark.parametrize("odd", ["unknown", "", ",", "198.51.100.7 198.51.100.8", "a" * 5000, "1" * 5000])
async def test_an_address_that_is_none_counts_as_the_proxys(proxied, odd):
    assert await try_from(proxied, odd, "viewer") == 401
    assert proxied.console.audit.recent()[0].address == "127.0.0.1"


@pytest.mark.parametrize("proxies", [("10.0.0.0/8",), ()])
async def test_a_stranger_that_is_no_proxy_is_not_believed(proxied, proxies):
    proxied.console.config = replace(proxied.console.config, proxies=proxies)
    for number in range(5):
        await try_from(proxied, f"198.51.100.{number}", "viewer")
    assert await try_from(proxied, "198.51.100.200", "viewer", PASSWORD) == 429


async def test_without_a_proxy_no_forwarded_address_is_believed(signed):
    for number in range(5):
        await try_from(signed, f"198.51.100.{number}", "viewer")
    assert await try_from(signed, "198.51.100.200", "viewer", PASSWORD) == 429


async def test_one_customers_ipv6_addresses_count_together(proxied):
    for number in range(5):
        await try_from(proxied, f"2001:db8:0:1::{number}", "viewer")
    assert await try_from(proxied, "2001:db8:0:1:ffff::1", "viewer", PASSWORD) == 429
    assert await try_from(proxied, "2001:db8:0:2::1", "viewer", PASSWORD) == 303


def test_tries_are_bounded_doubled_and_forgotten(clock, monkeypatch):
    monkeypatch.setattr(sessions, "MAX_TRIED", 250)
    tries = SignInFailures(clock)
    for number in range(100):
        assert tries.pause("198.51.100.7", f"name{number}") == 0
        tries.failed("198.51.100.7", f"name{number}")
    assert tries.pause("198.51.100.7", "anna") == 2  # for all names, after so many
    assert tries.pause("198.51.100.8", "name1") == 0
    for _ in range(5000):
        tries.failed("198.51.100.8", "anna")
    assert tries.pause("198.51.100.8", "anna") == 300
    for number in range(1000):
        tries.failed(f"198.51.{number // 250}.{number % 250}", "anna")
    assert len(tries._failed) == 250


async def test_failures_of_long_ago_are_forgotten(clock):
    tries = SignInFailures(clock)
    for _ in range(8):
        tries.failed("198.51.100.7", "anna")
    await clock.advance(3600)
    tries.failed("198.51.100.7", "anna")
    assert tries.pause("198.51.100.7", "anna") == 0


async def test_roles_may_what_they_may(signed, cluster):
    forms = {
        "/new-topic": ("admin", {"name": "orders", "queues": "1", "permission": "rw"}),
        "/send": ("operator", {"topic": "orders", "body": "1", "form": "text"}),
        "/groups/g/reset": ("operator", {"topic": "orders", "to": "end"}),
        "/topics/orders/delete": ("admin", {"name": "orders"}),
        "/accounts/delete": ("admin", {"name": "nobody"}),
        "/brokers/broker-a/change": ("admin", {"setting": "transactionCheckMax", "before": "15", "value": "7"}),
    }
    for role in Role:
        signed.client.cookies.clear()
        await signed.sign_in(role.text)
        token = signed.console.sessions.find(signed.client.cookies["pyromq-console"]).csrf
        for path, (needed, fields) in forms.items():
            answer = await signed.client.post(path, data={"csrf": token, **fields})
            is_allowed = role >= Role.of(needed)
            assert (answer.status_code == 403) is not is_allowed, (role, path, answer.text)
        assert ("New topic" in await signed.get("/topics")) is (role is Role.ADMIN)
        await signed.get("/audit", status=200 if role is Role.ADMIN else 403)
    refused = [each for each in signed.console.audit.recent() if each.outcome == "refused"]
    assert len(refused) == 6 + 4


async def test_a_form_without_its_sessions_token_changes_nothing(browser, cluster):
    await browser.get("/")
    for token in ("", "x" * 43):
        answer = await browser.client.post("/new-topic", data={"csrf": token, "name": "orders", "queues": "1"})
        assert "Nothing was changed" in answer.text
    assert "orders" not in await (await cluster.admin()).topics()
    assert browser.console.audit.recent() == []


async def test_a_form_of_another_site_is_refused(browser):
    answer = await browser.client.post("/new-topic", data={}, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 421


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:8876", 421),
        ("localhost:8876", 200),
        ("[::1]:8876", 200),
        ("10.0.0.7", 200),
    ],
)
async def test_names_that_are_not_its_own_are_refused(browser, host, status):
    assert (await browser.client.get("/topics", headers={"host": host})).status_code == status


async def test_pages_load_nothing_from_elsewhere_and_are_kept_by_nobody(browser):
    answer = await browser.client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store"
    assert "<style" not in answer.text and " style=" not in answer.text and "onclick" not in answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie


async def test_cookies_are_for_https_alone_where_it_is_spoken(config):
    async with browsing(replace(config, behind_tls=True)) as browser:
        answer = await browser.client.get("/")
        assert "; Secure" in answer.headers["set-cookie"]
        assert "strict-transport-security" in answer.headers


async def test_signing_out_and_a_new_password_end_sessions(signed):
    await signed.sign_in("admin")
    other = httpx.AsyncClient(
        transport=signed.client._transport, base_url="http://127.0.0.1:8876", follow_redirects=True
    )
    async with other:
        await other.post("/sign-in", data={"name": "viewer", "password": PASSWORD})
        assert "<title>Overview" in (await other.get("/")).text
        signed.form_at = "/accounts"
        new = "another password"
        await signed.post("/accounts/save", name="viewer", role="viewer", password=new, password_again=new)
        assert "<title>Sign in" in (await other.get("/")).text
    await signed.post("/sign-out")
    assert "<title>Sign in" in await signed.get("/")
    await signed.sign_in("viewer", new)


async def test_an_account_that_is_made_again_has_no_former_sessions(signed, on_disk):
    await signed.sign_in("admin")
    other = httpx.AsyncClient(
        transport=signed.client._transport, base_url="http://127.0.0.1:8876", follow_redirects=True
    )
    async with other:
        await other.post("/sign-in", data={"name": "viewer", "password": PASSWORD})
        signed.form_at = "/accounts"
        await signed.post("/accounts/delete", name="viewer")
        on_disk.save("viewer", role="admin", password="another password")
        assert "<title>Sign in" in (await other.get("/")).text


async def test_a_session_ends_after_its_hours(clock):
    known = sessions.Sessions(clock, hours=8)
    session = known.begin("ann")
    await clock.advance(8 * 3600 - 1)
    assert known.find(session.key) is session
    await clock.advance(1)
    assert known.find(session.key) is None


def test_changes_at_the_same_time_are_all_kept(tmp_path, request):
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    accounts = ConsoleAccounts(tmp_path / "accounts.json")
    names = ["ann", "ben", "cleo", "dan"]
    for name in names:
        accounts.save(name, role="admin", password=PASSWORD)

    def give_keys(name):
        for number in range(10):
            accounts.save(name, access_key=f"{name}-{number}", secret_key="s")

    with ThreadPoolExecutor() as threads:
        list(threads.map(give_keys, names))

    assert [each.access_key for each in accounts.all()] == [f"{name}-9" for name in names]


def test_the_last_administrator_keeps_the_role(tmp_path):
    accounts = ConsoleAccounts(tmp_path / "accounts.json")
    accounts.save("ann", role="admin", password=PASSWORD)
    with pytest.raises(UsageError, match="ann is the last administrator"):
        accounts.save("ann", role="operator")
    accounts.save("bob", role="admin", password=PASSWORD)
    accounts.save("ann", role="operator")


async def test_the_first_account_is_an_administrators(browser):
    browser.form_at = "/accounts"
    fields = {"name": "anna", "password": PASSWORD, "password_again": PASSWORD, "back": "/accounts"}
    assert "The first account must be an administrator" in await browser.post("/accounts/save", role="viewer", **fields)
    assert "<title>Sign in" in await browser.post("/accounts/save", role="admin", **fields)
    await browser.sign_in("anna")
    assert "This is your own account" in await browser.post("/accounts/delete", name="anna", back="/accounts")


async def test_the_audit_log_has_every_change_and_no_secret(browser, tmp_path):
    browser.form_at = "/accounts"
    await browser.post("/accounts/save", name="anna", role="admin", password=PASSWORD, password_again=PASSWORD)
    text = (browser.console.config.data / "audit.log").read_text()
    assert PASSWORD not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(each["what"], each["outcome"], each["details"]["name"]) for each in lines] == [
        ("save account", "asked", "anna"),
        ("save account", "done", "anna"),
    ]


def test_files_are_for_their_owner(tmp_path):
    accounts = ConsoleAccounts(tmp_path / "accounts.json")
    accounts.save("anna", role="admin", password=PASSWORD, access_key="ak", secret_key="sk-12345678")
    assert stat.S_IMODE((tmp_path / "accounts.json").stat().st_mode) == 0o600
    again = ConsoleAccounts(tmp_path / "accounts.json")
    assert again.signed_in("anna", PASSWORD).access_key == "ak"
    assert again.signed_in("anna", PASSWORD + "x") is None
    assert PASSWORD not in (tmp_path / "accounts.json").read_text()
    assert "sk-12345678" not in repr(again.find("anna"))


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "", "role": "admin", "password": PASSWORD},
        {"name": "a b", "role": "admin", "password": PASSWORD},
        {"name": "anna", "role": "owner", "password": PASSWORD},
        {"name": "anna", "role": "admin", "password": "short"},
        {"name": "anna", "role": "admin"},
        {"name": "anna", "role": "admin", "password": PASSWORD, "access_key": "only"},
    ],
)
def test_accounts_that_cannot_be_are_refused(tmp_path, fields):
    with pytest.raises(UsageError):
        ConsoleAccounts(tmp_path / "accounts.json").save(**fields)
    assert not (tmp_path / "accounts.json").exists()


def test_a_file_that_is_none_is_named(tmp_path):
    (tmp_path / "accounts.json").write_text("{")
    with pytest.raises(UsageError, match=r"accounts\.json cannot be read"):
        ConsoleAccounts(tmp_path / "accounts.json")


def test_an_audit_log_goes_on_where_it_was_and_survives_a_torn_line(tmp_path, clock):
    log = ConsoleAuditLog(tmp_path / "audit.log", clock)
    log.ended(log.asked("a", account="x", address="y", details={}), "done")
    log.asked("b", account="x", address="y", details={})
    log.close()
    with (tmp_path / "audit.log").open("ab") as file:
        file.write(b'{"id": "torn')
    again = ConsoleAuditLog(tmp_path / "audit.log", clock)
    assert [(each.what, each.outcome) for each in again.recent()] == [("b", "asked"), ("a", "done")]
    again.close()


def test_strangers_are_let_in_only_with_accounts_and_tls(config):
    check_protection(config, has_accounts=False)
    outside = replace(config, host="0.0.0.0")
    with pytest.raises(UsageError, match="create one with"):
        check_protection(outside, has_accounts=False)
    with pytest.raises(UsageError, match="clear text"):
        check_protection(outside, has_accounts=True)
    check_protection(replace(outside, behind_tls=True), has_accounts=True)


async def test_an_account_acts_with_its_own_keys(config):
    config.data.mkdir(parents=True)
    ConsoleAccounts(config.data / "accounts.json").save(
        "anna", role="admin", password=PASSWORD, access_key="anna-key", secret_key="anna-secret"
    )
    console = Console(config)
    own, shared = console.clients_of(console.accounts.find("anna")), console.clients_of(None)
    assert own is not shared
    assert own._connections.access_key == "anna-key"
    console.audit.close()


@pytest.fixture
def on_disk(signed, config):
    """The accounts as `pyromq console account` opens them, while the console runs."""
    return ConsoleAccounts(config.data / "accounts.json")


async def test_a_password_set_on_the_command_line_works_at_once_and_ends_sessions(signed, on_disk):
    await signed.sign_in("viewer")
    on_disk.save("viewer", password="another password")
    answer = await signed.client.get("/topics", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/sign-in")
    await signed.sign_in("viewer", status=401)
    await signed.sign_in("viewer", "another password")


async def test_an_account_of_the_command_line_survives_changes_on_the_page(signed, on_disk):
    on_disk.save("bob", role="viewer", password=PASSWORD)
    await signed.sign_in("admin")
    fields = {"name": "carol", "role": "operator", "password": PASSWORD, "password_again": PASSWORD}
    await signed.post("/accounts/save", **fields)
    assert {each.name for each in on_disk.all()} >= {"bob", "carol"}


async def test_a_running_console_keeps_its_accounts_if_their_file_is_gone_or_broken(signed, config, caplog):
    path = config.data / "accounts.json"
    path.write_text("[")
    await signed.sign_in("viewer")
    assert "cannot be read" in caplog.text
    path.unlink()
    assert (await signed.client.get("/topics")).status_code == 200
    assert not signed.console.is_open


def test_accounts_that_become_readable_count_though_their_file_does_not_change(tmp_path, monkeypatch, caplog):
    path = tmp_path / "accounts.json"
    ConsoleAccounts(path).save("ann", role="admin", password=PASSWORD)
    running, other = ConsoleAccounts(path), ConsoleAccounts(path)
    other.save("bob", role="viewer", password=PASSWORD)

    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        for _ in range(3):
            assert running.find("bob") is None
    assert caplog.text.count("cannot be read") == 1
    assert running.find("bob") is not None


async def test_the_first_account_of_the_command_line_closes_an_open_console(browser, config):
    assert (await browser.client.get("/topics", follow_redirects=False)).status_code == 200
    ConsoleAccounts(config.data / "accounts.json").save("ann", role="admin", password=PASSWORD)
    answer = await browser.client.get("/topics", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/sign-in")
