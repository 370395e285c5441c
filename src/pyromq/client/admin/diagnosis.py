"""Diagnoses sending and consuming step by step, from the name server to a topic's brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Coroutine, Iterator, Mapping
from contextlib import contextmanager

from pyromq.client.admin.admin_client import ClusterBrokers, masters_of
from pyromq.client.admin.finding import Finding as Finding
from pyromq.client.admin.group_diagnosis import group_findings
from pyromq.client.admin.replica_diagnosis import set_findings
from pyromq.client.admin.replica_sets import ask_set
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.environment import connections_of
from pyromq.client.cluster.known_masters import MASTER
from pyromq.client.cluster.name_servers import addresses_of
from pyromq.client.cluster.topic_routes import read_route
from pyromq.clock import Clock, SystemClock
from pyromq.errors import (
    AccessDenied,
    AnotherServer,
    ConnectionLost,
    DeadlineExceeded,
    HostNotFound,
    MQError,
    NoNameServer,
    NoPermission,
    SilentServer,
    TlsRefused,
    TopicNotFound,
    Unavailable,
)
from pyromq.names import AUTO_CREATE_TOPIC, check_topic
from pyromq.net.address_server import AddressServer, is_url
from pyromq.net.channel import Channel, connected
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.certificate_dates import SOON_DAYS, lifetime
from pyromq.net.tls.failures import speaks_tls
from pyromq.net.tls.first_bytes import REFUSED
from pyromq.plural import counted
from pyromq.remoting.bodies import BrokerAddresses, ClusterTable, KeyValues, decode_body
from pyromq.remoting.headers import BrokerClusterInfo, BrokerState

WITH_TLS = "give the authority of its certificate: --tls-ca FILE (ConnectionConfig.tls), see docs/tls.md"
WITHOUT_TLS = "leave out --tls... options and PYROMQ_TLS... variables, or enable TLS at the server"
OTHER_FILES = "check --tls-ca, --tls-cert, --tls-key and the server's certificate; see docs/tls.md"
HANGS = "the process is stopped, or it hangs: look at it, at its machine's load and disk, and start it again"

CONNECT_SECONDS = 0.5  # limit of a trial connection: a process that hangs accepts it, an unused address does not
TIMEOUT = 2.0  # limit of each request to a broker: users run doctor when a broker hangs


async def diagnose(
    namesrv: str | None = None,
    topic: str | None = None,
    *,
    clock: Clock | None = None,
    connections: ConnectionConfig | None = None,
    seconds: float | None = None,
) -> list[Finding]:
    """Check name servers, brokers and a topic with its groups, and return the findings in order.

    Servers are asked at the same time. The brokers of a failing name server are not checked. After `seconds` (None: no
    limit) this returns the findings so far, and one for each silent server; the last one names the checks left out.
    Raises `UsageError` naming a TLS file that cannot be used.
    """
    connections = connections_of(connections)
    if connections.tls is not None:
        connections.tls.context()
    clock = clock or SystemClock()
    report = _Report()
    check = _check_name_servers(namesrv, topic, report, clock=clock, connections=connections)
    if seconds is None:
        await check
    elif not await _ends_within(check, seconds, clock):
        text = f"has not answered when the {seconds:g} s for all checks were over"
        left = f"not asked any more: {', '.join(report.left)}" if report.left else ""
        *others, last = sorted(report.waiting, key=report.waiting.__getitem__) or ["doctor"]
        return [*report.findings, *(Finding(each, False, text) for each in others), Finding(last, False, text, left)]
    return report.findings


async def _ends_within(work: Coroutine[None, None, None], seconds: float, clock: Clock) -> bool:
    """Run a coroutine for at most `seconds`. Return whether it ended in this time. Raises its error."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


Place = tuple[int, ...]  # orders findings: number of the name server, step of its check, number of the broker


class _Report:
    """The findings so far. `waiting` are the servers whose reply is awaited, `left` the checks that come after it."""

    def __init__(self) -> None:
        self.waiting: dict[str, Place] = {}
        self.left: dict[str, None] = {}
        self._found: list[tuple[Place, Finding]] = []

    def add(self, place: Place, *findings: Finding) -> None:
        self._found += ((place, each) for each in findings)

    @contextmanager
    def asking(self, name: str, place: Place) -> Iterator[None]:
        """Note a server as awaited inside the context; a cancelled check leaves it noted."""
        self.left.pop(name, None)
        self.waiting[name] = place
        yield
        self.waiting.pop(name, None)  # another name server may name the same broker

    @property
    def findings(self) -> list[Finding]:
        return [finding for _, finding in sorted(self._found, key=lambda each: each[0])]


async def _check_name_servers(
    namesrv: str | None, topic: str | None, report: _Report, *, clock: Clock, connections: ConnectionConfig
) -> None:
    addresses = addresses_of(namesrv)
    if is_url(addresses[0]):
        name = f"address server {addresses[0]}"
        with report.asking(name, (-1,)):
            try:
                addresses = await AddressServer(addresses[0]).look_up()
            except NoNameServer as error:
                report.add((-1,), Finding(name, False, str(error)))
                return
        report.add((-1,), Finding(name, True, f"names {';'.join(addresses)}"))
    if topic is not None:
        report.left[f"topic {topic}"] = None

    async def check(number: int, address: str) -> None:
        cluster = ClusterClient(address, clock, connections=connections)
        try:
            await _check_all(cluster, address, topic, report, number=number, clock=clock)
        finally:
            await cluster.close()

    await asyncio.gather(*(check(number, address) for number, address in enumerate(addresses)))


async def _check_all(
    cluster: ClusterClient, address: str, topic: str | None, report: _Report, *, number: int, clock: Clock
) -> None:
    with report.asking(f"name server {address}", (number,)):
        finding, table = await _check_name_server(cluster, address, clock)
        report.add((number, 0), finding, *certificates_of(finding.name, cluster.open_channel(address), clock))
    if table is None:
        return
    reached = await _check_brokers(cluster, address, table, report, number=number, clock=clock)
    if topic is not None:
        with report.asking(f"topic {topic}", (number, 3)):
            async for finding in _check_topic(cluster, topic, reached):
                report.add((number, 3), finding)


async def _check_name_server(cluster: ClusterClient, address: str, clock: Clock) -> tuple[Finding, ClusterTable | None]:
    name = f"name server {address}"
    try:
        await cluster.start()
        response = await cluster.name_servers.ask(BrokerClusterInfo())
        table = decode_body(ClusterTable, response.check().body)
    except Unavailable as error:
        reason = error.__cause__ or error
        if (finding := await explained(name, address, reason, clock)) is not None:
            return finding, None
        if isinstance(reason, AnotherServer):
            return Finding(
                name, False, f"is not a name server: {reason}", "a name server listens on 9876 by default"
            ), None
        if isinstance(reason, HostNotFound):
            return Finding(name, False, f"is not found: {reason}", "correct the name of the host, or look at DNS"), None
        advice = "start one with `pyromq serve`, or give its address with --namesrv (environment: NAMESRV_ADDR)"
        return Finding(name, False, f"does not answer: {reason}", advice), None
    except NoPermission as error:
        return Finding(name, False, f"refuses to answer: {error}", WITH_TLS), None
    except MQError as error:
        advice = "this looks like a broker's port; a name server listens on 9876 by default"
        return Finding(name, False, f"answers, but not as a name server: {error}", advice), None
    return Finding(name, True, f"answers; {counted(len(table.brokers), 'broker')} registered"), table


async def _check_brokers(
    cluster: ClusterClient, name_server: str, table: ClusterTable, report: _Report, *, number: int, clock: Clock
) -> set[str]:
    """Check all brokers at the same time, then their replica sets. Return the addresses of brokers that answer."""
    if not table.brokers:
        advice = f"start one with `pyromq serve broker --namesrv {name_server}`, or correct its namesrvAddr setting"
        report.add((number, 1), Finding("brokers", False, "no broker is registered", advice))
    reached: set[str] = set()
    sets: set[str] = set()  # names of replica sets

    async def check(place: Place, broker_name: str, broker_id: int, address: str) -> None:
        name = f"broker {broker_name} (id {broker_id})"
        with report.asking(name, place):
            figures = await _ask_broker(cluster, name, address, clock=clock)
        if isinstance(figures, Finding):
            report.add(place, figures)
        else:
            reached.add(address)
            report.add(place, _check_figures(name, address, figures))
            if "pyromqReplica" in figures:
                sets.add(broker_name)
        report.add(place, *certificates_of(name, cluster.open_channel(address), clock))

    async def check_set(place: Place, broker_name: str) -> None:
        with report.asking(f"replica set {broker_name}", place):
            report.add(place, *await _check_set(cluster, name_server, table.brokers[broker_name], clock))

    brokers = [
        (broker_name, broker_id, address)
        for broker_name, broker in sorted(table.brokers.items())
        for broker_id, address in sorted(broker.addresses.items())
    ]
    await asyncio.gather(*(check((number, 1, place), *each) for place, each in enumerate(brokers)))
    await asyncio.gather(*(check_set((number, 2, place), each) for place, each in enumerate(sorted(sets))))
    return reached


async def _check_set(
    cluster: ClusterClient, name_server: str, registered: BrokerAddresses, clock: Clock
) -> list[Finding]:
    name = registered.broker_name
    try:
        found = await ask_set(ClusterBrokers(cluster, timeout=TIMEOUT), name, registered, clock)
    except MQError as error:
        return [Finding(f"replica set {name}", False, str(error), "look at its brokers")]
    return set_findings(found, name_server, registered.addresses.get(MASTER))


async def _ask_broker(cluster: ClusterClient, name: str, address: str, *, clock: Clock) -> dict[str, str] | Finding:
    """Return a broker's runtime figures, or the finding about a broker that does not give them."""
    try:
        response = (await cluster.ask(address, BrokerState(), timeout=TIMEOUT)).check()
        return decode_body(KeyValues, response.body).table
    except Unavailable as error:
        if (finding := await explained(name, address, error, clock)) is not None:
            return finding
        if isinstance(error, DeadlineExceeded | SilentServer) and await _takes_connections(address, clock):
            return Finding(name, False, f"takes connections at {address}, but does not answer: {error}", HANGS)
        host = address.rpartition(":")[0]
        advice = (
            f"the broker tells clients to use {host}; if this machine cannot reach that address, start the broker with "
            "--broker-ip ADDRESS (setting brokerIP1); else check that it runs and that no firewall is between"
        )
        return Finding(name, False, f"advertises {address}, which cannot be reached from here: {error}", advice)
    except AccessDenied as error:
        advice = (
            "give an account that the broker has: --access-key and --secret-key @FILE (ConnectionConfig.access_key)"
        )
        return Finding(name, False, f"answers at {address}, but: {error}", advice)
    except MQError as error:
        return Finding(name, False, f"answers at {address}, but: {error}", "see the broker's log")


def _check_figures(name: str, address: str, figures: Mapping[str, str]) -> Finding:
    """Return the finding about a broker that answers with these figures."""
    if refusal := figures.get("sendRefusal"):  # only brokers of pyromq send this key and those read below
        return Finding(name, False, f"answers at {address}, but accepts no messages", refusal)
    if missing := figures.get("pyromqMissingFile"):
        text = f"answers at {address}, but files of its store were deleted: {figures.get('pyromqMissingFiles')}"
        advice = f"put {missing} and the others back before the broker stops: until then it reads them from memory"
        return Finding(name, False, text, advice)
    if fault := figures.get("pyromqPermissionsFault"):
        advice = "correct that file: the broker reloads it; until then the previous permissions apply"
        return Finding(name, False, f"answers at {address}, but its files of accounts are broken: {fault}", advice)
    if fault := figures.get("pyromqFollowFault"):
        advice = "do what the text says; until then this slave gets no further messages"
        return Finding(name, False, f"answers at {address}, but does not follow its master: {fault}", advice)
    hot_path = figures.get("pyromqHotPath")
    text = f"answers at {address}" + (f"; hot path: {hot_path}" if hot_path else "")
    if folder := figures.get("pyromqOpenDataFolder"):
        advice = f"every user of its machine can read the data folder {folder}: chmod it to 700"
        return Finding(name, True, text, advice)
    return Finding(name, True, text)


async def _check_topic(cluster: ClusterClient, topic: str, reached: Container[str]) -> AsyncIterator[Finding]:
    """Yield the findings about a topic, and about its groups at the brokers that can be reached."""
    name = f"topic {topic}"
    try:
        check_topic(topic)
    except MQError as error:
        yield Finding(name, False, str(error), "choose another name")
        return
    try:
        body = await cluster.ask_route(topic)
    except TopicNotFound:
        yield await _check_auto_creation(cluster, topic)
        return
    route = read_route(topic, body)
    if not route.readable or not route.writable:
        missing = "read" if not route.readable else "written"
        advice = f"change it with `pyromq topic alter {topic} --permission rw`, or start its broker"
        if route.readable:
            brokers = ", ".join(broker.broker_name for broker in body.brokers)
            advice += f"; were they taken out by `pyromq cluster wipe` ({brokers}), `pyromq cluster unwipe` undoes it"
        yield Finding(name, False, f"has no queue that can be {missing}: permission, or no master", advice)
    else:
        yield Finding(
            name, True, f"has {counted(len(route.writable), 'queue')} to write, {len(route.readable)} to read"
        )
    masters = [address for address in masters_of(body.brokers).values() if address in reached]
    for finding in await group_findings(cluster, topic, masters, timeout=TIMEOUT):
        yield finding


async def _check_auto_creation(cluster: ClusterClient, topic: str) -> Finding:
    name = f"topic {topic}"
    try:
        await cluster.ask_route(AUTO_CREATE_TOPIC)
    except TopicNotFound:
        advice = f"create it with `pyromq topic create {topic}`, or set autoCreateTopicEnable=true at a broker"
        return Finding(name, False, "does not exist, and no broker creates topics by itself", advice)
    return Finding(name, True, "does not exist yet; the first message will create it")


async def explained(name: str, address: str, error: BaseException, clock: Clock) -> Finding | None:
    """Return the TLS finding for an address whose connection failed with `error`; None if TLS is not the cause."""
    if isinstance(error, TlsRefused):
        if await _answers_plainly(address, clock):
            return Finding(name, False, "takes plain connections only", WITHOUT_TLS)
        return Finding(name, False, f"does not agree on TLS: {error}", OTHER_FILES)
    if isinstance(error, ConnectionLost) and not isinstance(error, AnotherServer) and await speaks_tls(address):
        return Finding(name, False, f"takes TLS connections only, or no connection of this client: {error}", WITH_TLS)
    return None


def certificates_of(name: str, channel: Channel | None, clock: Clock) -> list[Finding]:
    """Return a finding about the expiry of the server's certificate; [] for a plain connection or none."""
    end = channel.certificate_expiry if channel is not None else None
    if end is None:
        return []
    left = end - clock.now_ms() / 1000
    advice = "renew it; servers read changed files within a second of the next connection"
    is_long = left >= SOON_DAYS * 86_400
    return [Finding(f"certificate of {name}", is_long, lifetime(left), "" if is_long else advice)]


async def _takes_connections(address: str, clock: Clock) -> bool:
    """Return whether the server's system opens connections; it does so for a process that is stopped, too."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            async with connected(address, clock, ConnectionConfig()):
                return True
    except (MQError, TimeoutError):
        return False


async def _answers_plainly(address: str, clock: Clock) -> bool:
    try:
        async with connected(address, clock, ConnectionConfig()) as channel:
            # A response of any kind shows that plain connections are accepted.
            return (await channel.call(BrokerState(), timeout=TIMEOUT)).remark != REFUSED
    except MQError:
        return False
