"""The registry on a real etcd of one member: values, leases, watches, accounts, TLS, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import subprocess
import sys
from contextlib import asynccontextmanager, suppress

import pytest
from tests.certificates import Authority
from tests.etcd_cluster import EtcdCluster, clock, need_etcd
from tests.processes import free_port

from pyromq.broker.replication.registry import ABSENT, Changed, Conflict, Missed, Unknown, Versioned
from pyromq.errors import LeaseGone, RegistryRefused, RegistryUnavailable, UsageError
from pyromq.net.tls.tls_config import TlsConfig

etcd = pytest.importorskip("pyromq.broker.replication.etcd", exc_type=UsageError)
BINARY = bytes(range(256))
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Give etcd more time than on a machine that is its own: a test that needs silence says so."""
    monkeypatch.setattr(etcd, "TRY_SECONDS", 10.0)
    monkeypatch.setattr(etcd, "SECOND_SECONDS", 5.0)


@pytest.fixture(scope="module")
def one_member(tmp_path_factory):
    need_etcd()
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
async def registry(one_member):
    registry = etcd.EtcdRegistry(one_member.urls)
    yield registry
    await registry.close()


@pytest.fixture
def key(request):
    return f"/pyromq/{request.node.name}/state"


async def written(registry, key, revision, value, **lease):
    """Swap, and return the new revision."""
    revision = await registry.swap(key, revision, value, **lease)
    assert isinstance(revision, int)
    return revision


async def news_of(registry, prefix, after, count):
    found = []
    async with asyncio.timeout(PATIENCE):
        async for each in registry.watch(prefix, after):
            found.append(each)
            if len(found) == count:
                break
    return found


async def test_a_key_is_written_read_and_deleted_by_its_revision(registry, key):
    assert await registry.read(key) == ABSENT
    first = await written(registry, key, 0, BINARY)
    assert await registry.read(key) == Versioned(BINARY, first)
    second = await written(registry, key, first, b"")
    assert await registry.read(key) == Versioned(b"", second)
    await written(registry, key, second, None)
    assert await registry.read(key) == ABSENT


async def test_a_swap_of_another_revision_is_a_conflict_that_tells_what_is_there(registry, key):
    assert await registry.swap(key, 5, b"x") == Conflict(ABSENT)
    revision = await written(registry, key, 0, b"one")
    for other in (0, revision - 1, revision + 1):
        assert await registry.swap(key, other, b"two") == Conflict(Versioned(b"one", revision))
        assert await registry.swap(key, other, None) == Conflict(Versioned(b"one", revision))
    assert await registry.read(key) == Versioned(b"one", revision)


async def test_a_listing_has_the_keys_of_the_prefix_and_no_others(registry, key):
    for name in ("replica/1", "replica/2", "replicas", "replica0", "state"):
        last = await written(registry, f"{key}/{name}", 0, name.encode())
    listing = await registry.read_all(f"{key}/replica/")
    assert {name: each.value for name, each in listing.entries.items()} == {
        f"{key}/replica/1": b"replica/1",
        f"{key}/replica/2": b"replica/2",
    }
    assert listing.revision >= last


async def test_a_lease_ends_with_its_keys_unless_it_is_kept(registry, key):
    kept, left = await registry.lease(2), await registry.lease(1.5)
    assert kept.seconds == left.seconds == 2
    await written(registry, f"{key}/kept", 0, b"1", lease=kept.id)
    await written(registry, f"{key}/left", 0, b"1", lease=left.id)
    ends = kept.ends
    async with asyncio.timeout(PATIENCE):
        while (await registry.read(f"{key}/left")).value is not None:
            before = clock()
            renewed = await registry.keep(kept.id)
            assert before <= renewed.sent <= clock()
            if clock() >= ends:  # this machine stood still
                break
            assert renewed.ends == renewed.sent + 2
            ends = renewed.ends
            await asyncio.sleep(0.2)
        else:
            assert clock() >= left.ends
            assert (await registry.read(f"{key}/kept")).value == b"1" or clock() >= ends
        while (await registry.read(f"{key}/left")).value is not None:
            await asyncio.sleep(0.2)
    assert (await registry.keep(left.id)).seconds == 0
    with pytest.raises(LeaseGone, match="lease not found"):
        await registry.swap(f"{key}/left", 0, b"2", lease=left.id)


async def test_a_released_lease_ends_at_once(registry, key):
    lease = await registry.lease(60)
    await written(registry, key, 0, b"1", lease=lease.id)
    await registry.release(lease.id)
    assert await registry.read(key) == ABSENT
    await registry.release(lease.id)


async def test_a_watch_tells_all_changes_in_order_from_its_revision_on(registry, key):
    first = await written(registry, f"{key}/a", 0, b"before")
    second = await written(registry, f"{key}/a", first, BINARY)
    deleted = await written(registry, f"{key}/a", second, None)
    await written(registry, f"{key}x", 0, b"of another prefix")
    watch = asyncio.create_task(news_of(registry, f"{key}/", first, 3))
    await asyncio.sleep(0)
    last = await written(registry, f"{key}/b", 0, b"new")
    assert await watch == [
        Changed(f"{key}/a", Versioned(BINARY, second)),
        Changed(f"{key}/a", Versioned(None, deleted)),
        Changed(f"{key}/b", Versioned(b"new", last)),
    ]


@pytest.mark.slow
async def test_a_quiet_watch_is_opened_again_and_goes_on(registry, key, monkeypatch):
    monkeypatch.setattr(etcd, "SILENCE_SECONDS", 0.05)
    first = await written(registry, key, 0, b"1")
    watch = asyncio.create_task(news_of(registry, key, first, 1))
    await asyncio.sleep(0.5)
    second = await written(registry, key, first, b"2")
    assert await watch == [Changed(key, Versioned(b"2", second))]


async def test_a_watch_from_a_compacted_revision_says_what_it_missed_and_goes_on(registry, one_member, key):
    first = await written(registry, key, 0, b"1")
    second = await written(registry, key, first, b"2")
    third = await written(registry, key, second, b"3")
    one_member.members[0].ask("kv/compaction", {"revision": str(third), "physical": True})
    news = await news_of(registry, key, first - 1, 2)
    assert news == [Missed(third - 1), Changed(key, Versioned(b"3", third))]


async def test_without_an_endpoint_reads_are_errors_and_a_swap_is_unknown(key):
    ports = free_port(), free_port()
    registry = etcd.EtcdRegistry(tuple(f"http://127.0.0.1:{port}" for port in ports))
    named = rf"http://127\.0\.0\.1:{ports[0]}: .*; http://127\.0\.0\.1:{ports[1]}: "
    for ask in (registry.read(key), registry.read_all(key), registry.lease(3), registry.keep(7), registry.release(7)):
        with pytest.raises(RegistryUnavailable, match=named):
            await ask
    answer = await registry.swap(key, 0, b"1")
    assert isinstance(answer, Unknown)
    assert all(str(port) in answer.reason for port in ports)
    await registry.close()


async def test_a_server_that_never_answers_costs_one_try(key, monkeypatch):
    asked = []

    async def silent(reader, writer):
        asked.append(writer)
        await silence(reader, writer)

    monkeypatch.setattr(etcd, "TRY_SECONDS", 0.5)
    async with serving(silent) as url:
        registry = etcd.EtcdRegistry((url,))
        with pytest.raises(RegistryUnavailable, match=rf"{url} was silent for 0\.5 s"):
            await registry.read(key)
        assert isinstance(await registry.swap(key, 0, b"1"), Unknown)
        assert len(asked) == 2
        await registry.close()


@asynccontextmanager
async def serving(handler):
    """Serve connections by the handler; yield the URL. Leaving the context waits for their ends."""
    connections = []

    async def serve(reader, writer):
        connections.append(asyncio.current_task())
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    if connections:
        await asyncio.wait(connections)


async def silence(reader, writer):
    await reader.read()


def answering(*parts: bytes):
    """Return a connection handler of a server that answers every request with a body in these parts."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    return answer


async def test_another_server_is_named(key):
    async with serving(answering(b"<html>hello</html>")) as url:
        registry = etcd.EtcdRegistry((url,))
        with pytest.raises(RegistryUnavailable, match=r"does not answer as etcd: <html>hello</html>"):
            await registry.read(key)
        assert isinstance(await registry.swap(key, 0, b"1"), Unknown)
        await registry.close()


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
async def test_news_that_the_gateway_cuts_anywhere_and_joins_are_complete(size):
    def line(**result):
        return json.dumps({"result": {"header": {"revision": "9"}, **result}}).encode() + b"\n"

    events = [{"kv": {"key": "L2E=", "value": "MQ==", "mod_revision": str(number)}} for number in range(2, 9)]
    text = line(created=True) + b"".join(line(events=[event]) for event in events[:5]) + line(events=events[5:])
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    async with serving(answering(*parts)) as url:
        registry = etcd.EtcdRegistry((url,))
        news = await news_of(registry, "/", 1, 7)
        assert news == [Changed("/a", Versioned(b"1", number)) for number in range(2, 9)]
        await registry.close()


@pytest.fixture(scope="module")
def with_accounts(tmp_path_factory):
    """A member that asks for accounts: `root`, and `broker`, which may use keys below /pyromq/ only."""
    need_etcd()
    with EtcdCluster(tmp_path_factory.mktemp("accounts")) as cluster:
        member = cluster.members[0]
        for name in ("root", "broker"):
            member.ask("auth/user/add", {"name": name, "password": "secret"})
            member.ask("auth/role/add", {"name": name})
            member.ask("auth/user/grant", {"user": name, "role": name})
        prefix = {"key": "L3B5cm9tcS8=", "range_end": "L3B5cm9tcTA=", "permType": "READWRITE"}
        member.ask("auth/role/grant", {"name": "broker", "perm": prefix})
        member.ask("auth/enable", {})
        yield cluster


async def use(registry, key):
    revision = await written(registry, key, (await registry.read(key)).revision, b"1")
    lease = await registry.lease(10)
    assert (await registry.keep(lease.id)).seconds == 10
    await registry.release(lease.id)
    assert (await registry.read_all(key)).entries == {key: Versioned(b"1", revision)}
    assert await news_of(registry, key, revision - 1, 1) == [Changed(key, Versioned(b"1", revision))]


@pytest.mark.slow
async def test_an_account_is_used_and_its_token_renewed(with_accounts, key):
    registry = etcd.EtcdRegistry(with_accounts.urls, user="broker", password="secret")
    await use(registry, key)
    member = with_accounts.members[0]
    member.kill()  # etcd keeps tokens in memory
    with_accounts.start(member)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await use(registry, key)
                break
            except RegistryUnavailable:
                await asyncio.sleep(0.1)
    with pytest.raises(RegistryRefused, match="permission denied; grant the account in PYROMQ_ETCD_USER the right"):
        await registry.read("/other")
    with pytest.raises(RegistryRefused, match="permission denied"):
        await registry.swap("/other", 0, b"1")
    with pytest.raises(RegistryRefused, match="permission denied"):
        await news_of(registry, "/other", 1, 1)
    await registry.close()


async def test_a_wrong_password_and_a_missing_one_are_refused_by_name(with_accounts, key):
    wrong = etcd.EtcdRegistry(with_accounts.urls, user="broker", password="guess")
    for ask in (wrong.read(key), wrong.swap(key, 0, b"1"), wrong.lease(3), news_of(wrong, key, 1, 1)):
        with pytest.raises(
            RegistryRefused, match=rf"{with_accounts.urls[0]} refuses: .* for user broker; .*PYROMQ_ETCD_PASSWORD"
        ):
            await ask
    none = etcd.EtcdRegistry(with_accounts.urls)
    for ask in (none.read(key), none.swap(key, 0, b"1"), news_of(none, key, 1, 1)):
        with pytest.raises(RegistryRefused, match="PYROMQ_ETCD_USER"):
            await ask
    await wrong.close()
    await none.close()


async def test_an_account_is_no_trouble_where_etcd_asks_for_none(one_member, key):
    registry = etcd.EtcdRegistry(one_member.urls, user="broker", password="secret")
    await use(registry, key)
    await registry.close()


@pytest.mark.slow
# anyio leaves the socket of a TLS handshake that the server broke off to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_tls_with_certificates_of_both_sides(tmp_path, key):
    need_etcd()
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    server, client = authority.issue("server"), authority.issue("client")
    files = {"cert_file": server[0], "key_file": server[1], "trusted_ca_file": authority.file}
    with EtcdCluster(tmp_path / "etcd", **files) as cluster:
        tls = TlsConfig(authority=authority.file, certificate=client[0], key=client[1])
        registry = etcd.EtcdRegistry(cluster.urls, tls=tls)
        async with asyncio.timeout(PATIENCE):
            while isinstance(answer := await registry.swap(key, 0, b"1"), Unknown):
                await asyncio.sleep(0.1)
        assert isinstance(answer, int)
        assert await registry.read(key) == Versioned(b"1", answer)
        authority.issue("client")  # replaces the files while the registry runs
        assert await registry.read(key) == Versioned(b"1", answer)
        await registry.close()
        url = cluster.urls[0]
        for refused, reason in (
            (TlsConfig(authority=other.file, certificate=client[0], key=client[1]), "CERTIFICATE_VERIFY_FAILED"),
            (TlsConfig(authority=authority.file), "may require a client certificate"),
        ):
            registry = etcd.EtcdRegistry(cluster.urls, tls=refused)
            with pytest.raises(RegistryUnavailable, match=rf"{url}: .*{reason}"):
                await registry.read(key)
            await registry.close()
        registry = etcd.EtcdRegistry((url.replace("https", "http"),))
        with pytest.raises(RegistryUnavailable, match="may require https://"):
            await registry.read(key)
        await registry.close()
    gc.collect()
    with pytest.raises(UsageError, match=f"{tmp_path}/nowhere"):
        etcd.EtcdRegistry(("https://127.0.0.1:1",), tls=TlsConfig(authority=tmp_path / "nowhere"))


def test_without_httpx_the_error_has_the_command_that_installs_it():
    code = "import sys; sys.modules['httpx'] = None; import pyromq.broker.replication.etcd"
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert re.search(
        r"UsageError: replica sets need the package httpx; .* -m pip install .*(httpx|failover)", ended.stderr
    )


async def test_a_second_endpoint_is_asked_when_the_first_is_silent_and_comes_first_afterwards(
    one_member, key, monkeypatch
):
    monkeypatch.setattr(etcd, "SECOND_SECONDS", 0.05)
    monkeypatch.setattr(etcd, "TRY_SECONDS", 2 * PATIENCE)
    async with serving(silence) as silent:
        registry = etcd.EtcdRegistry((silent, *one_member.urls))
        async with asyncio.timeout(PATIENCE):  # no try at the silent endpoint is waited for
            assert await registry.read(key) == ABSENT
            assert isinstance(await registry.swap(key, 0, b"1"), int)
        await registry.close()


async def test_a_swap_is_sent_once(key):
    requests = []

    async def count(reader, writer):
        requests.append(await reader.readuntil(b"\r\n\r\n"))  # and closes: the swap may have happened

    async with serving(count) as one, serving(count) as other:
        registry = etcd.EtcdRegistry((one, other))
        assert isinstance(await registry.swap(key, 0, b"1"), Unknown)
        assert len(requests) == 1
        await registry.close()


async def test_an_endpoint_that_refuses_the_connection_has_not_done_the_swap_so_the_next_is_asked(one_member, key):
    registry = etcd.EtcdRegistry((f"http://127.0.0.1:{free_port()}", *one_member.urls))
    assert isinstance(await registry.swap(key, 0, b"1"), int)
    await registry.close()
