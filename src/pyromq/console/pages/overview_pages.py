"""The first page: problems, rates, and the groups with the most lag."""

from __future__ import annotations

from starlette.responses import Response

from pyromq.client.admin.diagnosis import Finding, diagnose
from pyromq.console.cluster.cluster_snapshot import ClusterSnapshot, GroupView, RuntimeFigures
from pyromq.console.view.chart import ChartLine
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import view
from pyromq.console.view.viewer_times import time_text
from pyromq.errors import MQError
from pyromq.plural import counted

SHOWN = 8  # number of groups and of topics shown
DISK_WARNING = 0.85


async def overview(context: RequestContext) -> Response:
    clients = context.clients()
    snapshot = await clients.snapshot()
    history = context.history
    topics = [each for each in snapshot.topics.values() if each.kind == "normal"]
    busiest = sorted(topics, key=lambda each: (-(history.rate("sent", each.name) or 0), -each.messages, each.name))
    return context.show(
        "overview.html",
        snapshot=snapshot,
        brokers=[RuntimeFigures(each) for each in snapshot.brokers.values()],
        problems=_problems(snapshot),
        topics=topics,
        busiest=busiest[:SHOWN],
        behind=_behind(snapshot)[:SHOWN],
        groups=[each for each in snapshot.groups.values() if not each.is_system],
        lag=sum(each.lag for each in snapshot.groups.values()),
        into=ChartLine("in", history.rates("sent")),
        out=ChartLine("out", history.rates("consumed"), "two"),
        behind_line=ChartLine("lag", history.values("lag")),
    )


async def doctor(context: RequestContext) -> Response:
    """Run `pyromq doctor` and show its findings. The doctor has a page to itself, since the doctor waits for brokers
    that do not respond.
    """
    topic = context.query.get("topic") or None
    config = context.console.config
    try:
        found = await diagnose(
            config.namesrv,
            topic,
            clock=context.console.clock,
            connections=config.connections,
            seconds=config.doctor_seconds,
        )
    except MQError as error:
        found = [Finding("doctor", False, str(error))]
    return context.show("doctor.html", findings=found, topic=topic or "")


def _problems(snapshot: ClusterSnapshot) -> list[tuple[str, str, str]]:
    """Return the problems of the cluster, worst first, each with severity, text and address of a page."""
    found = [
        (
            "bad",
            f"Broker {each.name} {each.silence} since {time_text(each.error_since_ms)}: {each.error}",
            address("brokers", each.name),
        )
        for each in snapshot.silent
    ]
    for broker in snapshot.brokers.values():
        line = RuntimeFigures(broker)
        if line.refusal:
            found.append(("bad", f"Broker {broker.name} takes no messages: {line.refusal}", "/doctor"))
        elif line.disk is not None and line.disk >= DISK_WARNING:
            found.append(("warn", f"Broker {broker.name}: its disk is {line.disk:.0%} full", "/doctor"))
        if fault := broker.runtime.get("pyromqPermissionsFault"):
            found.append(("bad", f"Broker {broker.name}: its files of accounts are broken: {fault}", "/doctor"))
    for group in snapshot.groups.values():
        where = address("groups", group.name)
        if group.differs:
            found.append(("bad", f"Members of group {group.name} subscribe differently, and miss messages", where))
        if group.lag and not group.members and not group.is_system:
            text = f"Group {group.name} is {counted(group.lag, 'message')} behind, and nobody of it is online"
            found.append(("warn", text, where))
    letters = sum(each.dead_letters for each in snapshot.groups.values())
    if letters:
        text = f"{counted(letters, 'dead letter')}: messages that groups gave up"
        found.append(("note", text, "/dead-letters"))
    return sorted(found, key=lambda each: ("bad", "warn", "note").index(each[0]))


def _behind(snapshot: ClusterSnapshot) -> list[GroupView]:
    """Return the groups that have lag, with the longest delay in time first."""
    late = [each for each in snapshot.groups.values() if each.lag > 0]
    return sorted(late, key=lambda each: (-each.delay_ms, -each.lag, each.name))


ROUTES = [view("/", overview), view("/doctor", doctor)]
