"""Pages of one broker: its rates, store, replicas and settings, and the change of a setting."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.responses import Response

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.admin.finding import Finding
from pyromq.client.admin.replica_diagnosis import set_findings
from pyromq.client.admin.replica_sets import ReplicaSetAnswers
from pyromq.console.cluster.cluster_clients import ClusterClients
from pyromq.console.cluster.cluster_snapshot import KINDS, MASTER, BrokerView, RuntimeFigures, kind_of
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.errors import MQError, QueryNotFound, Unavailable, UsageError
from pyromq.remoting.bodies import TopicFigures

REPLICA_SECONDS = 2.0  # time limit of the request to each replica


@dataclass(frozen=True, slots=True)
class Replica:
    """The figures of one process of a broker (master or slave), or the error of its request."""

    broker_id: int
    address: str
    line: RuntimeFigures | None
    error: str = ""


async def broker(context: RequestContext) -> Response:
    clients = context.clients()
    admin, found = await clients.admin(), await _find(clients, context.path["name"])
    replicas = await asyncio.gather(*(_replica(admin, found, each) for each in found.addresses))
    line = next((each.line for each in replicas if each.line is not None), RuntimeFigures(found))
    table = None
    kind = context.query.get("kind") if context.query.get("kind") in KINDS else "normal"
    if found.figures is not None:
        names = {found.name, found.cluster}
        table = Table[TopicFigures](
            [each for each in found.figures.topics if kind in ("all", kind_of(each.name, names))],
            context.query,
            columns={
                "topic": lambda each: each.name.casefold(),
                "queues": lambda each: (each.read_queues, each.name),
                "messages": lambda each: (each.messages, each.name),
                "last": lambda each: (each.last_store_ms, each.name),
            },
            sort="-messages",
            text=lambda each: each.name,
        )
    is_set = any(each.line is not None and "pyromqReplica" in each.line.runtime for each in replicas)
    return context.show(
        "broker.html",
        broker=found,
        line=line,
        replicas=replicas,
        table=table,
        kind=kind,
        kinds=KINDS,
        replica_set=await _replica_set(context, admin, found) if is_set else None,
        into=context.rate_line("in", "broker in", found.name),
        out=context.rate_line("out", "broker out", found.name, "two"),
        page="state",
    )


@dataclass(frozen=True, slots=True)
class ReplicaSetView:
    """A replica set on its page: all answers with the set's problems, or the error of the requests."""

    answers: ReplicaSetAnswers | None
    findings: list[Finding]
    error: str = ""


async def _replica_set(context: RequestContext, admin: AsyncAdmin, broker: BrokerView) -> ReplicaSetView:
    try:
        async with asyncio.timeout(REPLICA_SECONDS):
            answers = await admin.replica_sets.state(broker.name)
    except TimeoutError:
        return ReplicaSetView(None, [], f"its replicas do not answer within {REPLICA_SECONDS:g} s")
    except MQError as error:
        return ReplicaSetView(None, [], str(error))
    findings = set_findings(answers, context.console.namesrv, broker.address)
    return ReplicaSetView(answers, [each for each in findings if not each.ok or each.advice])


async def fail_over(context: RequestContext) -> Response:
    """Make another replica the master, if the master is still the replica that was shown as the master."""
    name, number = context.path["name"], context.whole("number", least=1)
    before = context.whole("master", least=1)
    sets = (await context.clients().admin()).replica_sets
    master = (await sets.state(name)).best.master
    if master != before:
        raise UsageError(f"nothing was changed: the master is now replica {master}, and no longer replica {before}")
    seconds = await sets.hand_over(name, number)
    return context.done(
        f"Replica {number} is the master of {name} now, after {seconds:.3f} s.", address("brokers", name)
    )


async def settings(context: RequestContext) -> Response:
    clients = context.clients()
    admin, found = await clients.admin(), await _find(clients, context.path["name"])
    broker_id = _broker_id(context.query.get("id", ""), found)
    table = Table[tuple[str, str]](
        sorted((await admin.broker_config(found.addresses[broker_id])).items()),
        {"rows": "500", **context.query},
        columns={"setting": lambda each: each[0].casefold(), "value": lambda each: (each[1].casefold(), each[0])},
        sort="setting",
        text=" ".join,
    )
    return context.show("broker_settings.html", broker=found, broker_id=broker_id, table=table, page="settings")


async def change_form(context: RequestContext) -> Response:
    """Show one setting and a field for the new value.

    With a value in the address, show the change before it is made.
    """
    clients, query = context.clients(), context.query
    admin, found = await clients.admin(), await _find(clients, context.path["name"])
    broker_id = _broker_id(query.get("id", ""), found)
    name = query.get("setting", "")
    before = _value(await admin.broker_config(found.addresses[broker_id]), name, found)
    return context.show(
        "broker_change.html",
        broker=found,
        broker_id=broker_id,
        setting=name,
        before=before,
        after=query["value"].strip() if "value" in query else None,
    )


async def save(context: RequestContext) -> Response:
    """Change one setting if its value is still the value shown.

    Show the value that the broker reports afterwards.
    """
    clients, form = context.clients(), context.form
    admin, found = await clients.admin(), await _find(clients, context.path["name"])
    broker_id = _broker_id(form.get("id", ""), found)
    at, name, value = found.addresses[broker_id], form.get("setting", ""), form.get("value", "").strip()
    before = _value(await admin.broker_config(at), name, found)
    if before != form.get("before", ""):
        raise UsageError(
            f"nothing was changed: {name} is now {before!r}, and no longer {form.get('before', '')[:200]!r}"
        )
    await admin.servers.change_settings(at, {name: value})
    now = (await admin.broker_config(at)).get(name)
    text = f"{name} of broker {found.name} is {now!r} now; it was {before!r}."
    if now != value:
        text = (
            f"Broker {found.name} has taken {value!r} for {name}, and still says {now!r}: "
            "some settings hold from its next start on."
        )
    return context.done(text, address("brokers", found.name, "settings", id=broker_id or None, filter=name))


async def _find(clients: ClusterClients, name: str) -> BrokerView:
    snapshot = await clients.snapshot_with(name, lambda each: each.brokers)
    if name not in snapshot.brokers:
        there = ", ".join(sorted(snapshot.brokers)[:20]) or "none"
        raise QueryNotFound(f"broker {name} is not registered; registered brokers: {there}")
    return snapshot.brokers[name]


def _broker_id(text: str, broker: BrokerView) -> int:
    """Return the broker id that the request names, by default the master's (0). Raises `UsageError`."""
    if not text and broker.addresses:
        return min(broker.addresses)
    if not text.isdecimal() or len(text) > 18 or int(text) not in broker.addresses:
        raise UsageError(
            f"broker {broker.name} has no id {text[:40]!r}; it has {', '.join(map(str, broker.addresses))}"
        )
    return int(text)


def _value(config: dict[str, str], name: str, broker: BrokerView) -> str:
    if name not in config:
        raise QueryNotFound(f"broker {broker.name} has no setting {name[:100]!r}")
    return config[name]


async def _replica(admin: AsyncAdmin, broker: BrokerView, broker_id: int) -> Replica:
    at = broker.addresses[broker_id]
    if broker_id == MASTER:  # the snapshot has the master's figures
        line = RuntimeFigures(broker) if broker.runtime else None
        return Replica(broker_id, at, line, broker.error or "")
    try:
        async with asyncio.timeout(REPLICA_SECONDS):
            return Replica(broker_id, at, RuntimeFigures(broker, await admin.broker_runtime(at)))
    except TimeoutError:
        error: MQError = Unavailable(f"{at} does not answer within {REPLICA_SECONDS:g} s")
    except MQError as failure:
        error = failure
    return Replica(broker_id, at, None, str(error))


async def brokers(context: RequestContext) -> Response:
    snapshot, rate = await context.clients().snapshot(), context.history.rate
    table = Table[RuntimeFigures](
        [RuntimeFigures(each) for each in snapshot.brokers.values()],
        context.query,
        columns={
            "name": lambda each: each.broker.name.casefold(),
            "in": lambda each: rate("broker in", each.broker.name) or 0.0,
            "out": lambda each: rate("broker out", each.broker.name) or 0.0,
            "disk": lambda each: each.disk or 0.0,
            "log": lambda each: each.log_bytes or 0,
            "oldest": lambda each: each.oldest_ms or 0,
        },
        sort="name",
        text=lambda each: " ".join((each.broker.name, each.broker.cluster, *each.broker.addresses.values())),
    )
    return context.show("brokers.html", table=table, snapshot=snapshot)


ROUTES = [
    view("/brokers/{name}", broker),
    change("/brokers/{name}/failover", fail_over, needs=Role.ADMIN, what="planned failover"),
    view("/brokers/{name}/settings", settings),
    view("/brokers/{name}/change", change_form, needs=Role.ADMIN),
    change("/brokers/{name}/change", save, needs=Role.ADMIN, what="change setting"),
    view("/brokers", brokers),
]
