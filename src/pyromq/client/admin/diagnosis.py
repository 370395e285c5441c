"""Diagnoses sending and consuming step by step, from the name server to a topic's brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass

from pyromq.client.admin.admin_client import ClusterBrokers
from pyromq.client.admin.finding import Finding as Finding
from pyromq.client.admin.replica_diagnosis import set_findings
from pyromq.client.admin.replica_sets import ask_set
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.environment import connections_of
from pyromq.client.cluster.known_masters import MASTER
from pyromq.client.cluster.name_servers import addresses_of
from pyromq.client.cluster.topic_routes import read_route
from pyromq.clock import Clock, SystemClock
from pyromq.errors import (
    AnotherServer,
    ConnectionLost,
    HostNotFound,
    MQError,
    NoNameServer,
    NoPermission,
    TlsRefused,
    TopicNotFound,
    Unavailable,
)
from pyromq.names import AUTO_CREATE_TOPIC, check_topic
from pyromq.net.address_server import AddressServer, is_url
from pyromq.net.channel import Channel, connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.certificate_dates import SOON_DAYS, lifetime
from pyromq.net.tls.failures import speaks_tls
from pyromq.net.tls.first_bytes import REFUSED
from pyromq.plural import counted
from pyromq.remoting.bodies import BrokerAddresses, ClusterTable, KeyValues, TopicRoute, decode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import BrokerClusterInfo, BrokerState, RouteOfTopic

WITH_TLS = "give the authority of its certificate: --tls-ca FILE (ConnectionConfig.tls), see docs/tls.md"
WITHOUT_TLS = "leave out --tls... options and PYROMQ_TLS... variables, or enable TLS at the server"
OTHER_FILES = "check --tls-ca, --tls-cert, --tls-key and the server's certificate; see docs/tls.md"
_SECONDS = 3.0

TIMEOUT = 3.0


async def diagnose(
    namesrv: str | None = None,
    topic: str | None = None,
    *,
    clock: Clock | None = None,
    connections: ConnectionConfig | None = None,
    seconds: float | None = None,
) -> list[Finding]:
    """Check name servers, brokers and a topic, and return the findings in order.

    The brokers of a failing name server are not checked. After `seconds` (None: no limit) this returns the findings so
    far, and a last one that names the silent server and the checks left out. Raises `UsageError` naming a TLS file that
    cannot be used.
    """
    connections = connections_of(connections)
    if connections.tls is not None:
        connections.tls.context()
    clock = clock or SystemClock()
    found: list[Finding] = []
    asking = _Asking()

    async def check() -> None:
        async for finding in _check_name_servers(namesrv, topic, asking, clock=clock, connections=connections):
            found.append(finding)  # noqa: PERF401  the findings so far are returned if the time runs out

    if seconds is None:
        await check()
    elif not await _ends_within(check(), seconds, clock):
        text = f"has not answered when the {seconds:g} s for all checks were over"
        left = f"not asked any more: {', '.join(asking.left)}" if asking.left else ""
        found.append(Finding(asking.whom, False, text, left))
    return found


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


@dataclass(slots=True)
class _Asking:
    """The server whose reply is awaited, and the checks that come after it."""

    whom: str = "name servers"
    left: Sequence[str] = ()


async def _check_name_servers(
    namesrv: str | None, topic: str | None, asking: _Asking, *, clock: Clock, connections: ConnectionConfig
) -> AsyncIterator[Finding]:
    addresses = addresses_of(namesrv)
    if is_url(addresses[0]):
        url = addresses[0]
        asking.whom = f"address server {url}"
        try:
            addresses = await AddressServer(url).look_up()
        except NoNameServer as error:
            yield Finding(asking.whom, False, str(error))
            return
        yield Finding(asking.whom, True, f"names {';'.join(addresses)}")
    for number, address in enumerate(addresses, 1):
        asking.whom = f"name server {address}"
        asking.left = [f"name server {each}" for each in addresses[number:]]
        cluster = ClusterClient(address, clock, connections=connections)
        try:
            async for finding in _check_all(cluster, address, topic, asking, clock=clock):
                yield finding
        finally:
            await cluster.close()


async def _check_all(
    cluster: ClusterClient, address: str, topic: str | None, asking: _Asking, *, clock: Clock
) -> AsyncIterator[Finding]:
    finding, table = await _check_name_server(cluster, address, clock)
    yield finding
    for certificate in certificates_of(finding.name, cluster.open_channel(address), clock):
        yield certificate
    if table is None:
        return
    behind = asking.left
    if topic is not None:
        asking.left = [f"topic {topic}", *behind]
    async for finding in _check_brokers(cluster, address, table, asking, clock=clock):
        yield finding
    if topic is not None:
        asking.whom, asking.left = f"topic {topic}", behind
        async for finding in _check_topic(cluster, topic):
            yield finding


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
                name, False, f"is no name server: {reason}", "a name server listens on 9876 by default"
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
    cluster: ClusterClient, name_server: str, table: ClusterTable, asking: _Asking, *, clock: Clock
) -> AsyncIterator[Finding]:
    if not table.brokers:
        advice = f"start one with `pyromq serve broker --namesrv {name_server}`, or correct its namesrvAddr setting"
        yield Finding("brokers", False, "no broker is registered", advice)
    brokers = [
        (f"broker {broker_name} (id {broker_id})", address, broker_name)
        for broker_name, broker in sorted(table.brokers.items())
        for broker_id, address in sorted(broker.addresses.items())
    ]
    behind = asking.left
    sets: dict[str, None] = {}  # names of replica sets, in order
    for number, (name, address, broker_name) in enumerate(brokers, 1):
        asking.whom, asking.left = name, [*(each for each, *_ in brokers[number:]), *behind]
        figures: dict[str, str] = {}
        yield await _check_broker(cluster, name, address, figures, clock=clock)
        for certificate in certificates_of(name, cluster.open_channel(address), clock):
            yield certificate
        if "pyromqReplica" in figures:
            sets[broker_name] = None
    for set_name in sets:
        asking.whom, asking.left = f"replica set {set_name}", behind
        for finding in await _check_set(cluster, name_server, table.brokers[set_name], clock):
            yield finding


async def _check_set(
    cluster: ClusterClient, name_server: str, registered: BrokerAddresses, clock: Clock
) -> list[Finding]:
    name = registered.broker_name
    try:
        found = await ask_set(ClusterBrokers(cluster, timeout=TIMEOUT), name, registered, clock)
    except MQError as error:
        return [Finding(f"replica set {name}", False, str(error), "look at its brokers")]
    return set_findings(found, name_server, registered.addresses.get(MASTER))


async def _check_broker(
    cluster: ClusterClient, name: str, address: str, figures: dict[str, str], *, clock: Clock
) -> Finding:
    """Return the finding about a broker. The broker's runtime figures are added to `figures`."""
    try:
        response = (await cluster.ask(address, BrokerState(), timeout=TIMEOUT)).check()
        figures |= decode_body(KeyValues, response.body).table
    except Unavailable as error:
        if (finding := await explained(name, address, error, clock)) is not None:
            return finding
        host = address.rpartition(":")[0]
        advice = (
            f"the broker tells clients to use {host}; if that is no address for this machine, start the broker with "
            "--broker-ip ADDRESS (setting brokerIP1); else look whether it runs and whether a firewall is between"
        )
        return Finding(name, False, f"advertises {address}, which cannot be reached from here: {error}", advice)
    except MQError as error:
        return Finding(name, False, f"answers at {address}, but: {error}", "see the broker's log")
    if refusal := figures.get("sendRefusal"):  # only brokers of pyromq send this key and those read below
        return Finding(name, False, f"answers at {address}, but takes no messages", refusal)
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


async def _check_topic(cluster: ClusterClient, topic: str) -> AsyncIterator[Finding]:
    name = f"topic {topic}"
    try:
        check_topic(topic)
    except MQError as error:
        yield Finding(name, False, str(error), "choose another name")
        return
    try:
        body = await _route(cluster, topic)
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


async def _check_auto_creation(cluster: ClusterClient, topic: str) -> Finding:
    name = f"topic {topic}"
    try:
        await _route(cluster, AUTO_CREATE_TOPIC)
    except TopicNotFound:
        advice = f"create it with `pyromq topic create {topic}`, or set autoCreateTopicEnable=true at a broker"
        return Finding(name, False, "does not exist, and no broker creates topics by itself", advice)
    return Finding(name, True, "does not exist yet; the first message will create it")


async def _route(cluster: ClusterClient, topic: str) -> TopicRoute:
    response = await cluster.name_servers.ask(RouteOfTopic(topic=topic, standard_json_only=True))
    return decode_body(TopicRoute, response.check().body)


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


async def _answers_plainly(address: str, clock: Clock) -> bool:
    try:
        channel = await connect(address, Dispatcher(), clock, connections=ConnectionConfig())
    except MQError:
        return False
    try:
        # A response of any kind shows that plain connections are accepted.
        answer = await channel.call(BrokerState(), timeout=_SECONDS)
    except MQError:
        return False
    finally:
        await channel.close()
    return answer.remark != REFUSED
