"""The first page: problems, rates, and the groups with the most lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from starlette.responses import Response

from pyromq.client.admin.diagnosis import Finding, diagnose
from pyromq.console.cluster.cluster_snapshot import BrokerView, ClusterSnapshot, GroupView, RuntimeFigures
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import view
from pyromq.console.view.texts import duration
from pyromq.console.view.viewer_times import time_text
from pyromq.errors import MQError
from pyromq.plural import counted

SHOWN = 8  # number of groups and of topics shown
MAX_PROBLEMS = 10
DISK_WARNING, DISK_TROUBLE = 0.85, 0.95
CLOCK_WARNING_MS = 60_000  # difference of clocks from which on users look for messages at wrong times


async def overview(context: RequestContext) -> Response:
    snapshot = await context.clients().snapshot()
    history = context.history
    topics = [each for each in snapshot.topics.values() if each.kind == "normal"]
    rates = {each.name: history.rate("sent", each.name) for each in topics}
    busiest = sorted(topics, key=lambda each: (-(rates[each.name] or 0), -each.messages, each.name))
    groups = [each for each in snapshot.groups.values() if not each.is_system]
    behind = groups_behind(snapshot)
    problems = problems_of(snapshot)
    lag = sum(each.lag for each in groups)
    return context.show(
        "overview.html",
        snapshot=snapshot,
        brokers=[RuntimeFigures(each) for each in snapshot.brokers.values()],
        problems=problems[:MAX_PROBLEMS],
        more=Counter(each.kind for each in problems[MAX_PROBLEMS:]),
        topics=topics,
        rates=rates,
        busiest=busiest[:SHOWN],
        behind=behind[:SHOWN],
        groups=groups,
        lag=lag,
        into=context.rate_line("in", "sent"),
        out=context.rate_line("out", "consumed", style="two"),
        behind_line=context.value_line("lag", "lag", now=lag),
    )


async def doctor(context: RequestContext) -> Response:
    """Run `pyromq doctor` and show its findings.

    The doctor has its own page, because it waits for brokers that do not respond.
    """
    topic = context.query.get("topic") or None
    config = context.console.config
    try:
        found = await diagnose(
            config.namesrv,
            topic,
            clock=context.console.clock,
            connections=context.console.connections,  # they know which servers are silent, and since when
            seconds=config.doctor_seconds,
        )
    except MQError as error:
        found = [Finding("doctor", False, str(error))]
    return context.show("doctor.html", findings=found, topic=topic or "")


class Problem(NamedTuple):
    """A problem of the cluster, or a note. `kind` is `bad`, `warn` or `note`; `link` is the page that shows more."""

    kind: str
    text: str
    link: str


KINDS = ("bad", "warn", "note")
LEVELS = ("high", "warm", "calm")
OF_LEVELS = {"high": "bad", "warm": "warn", "calm": "warn"}


def groups_behind(snapshot: ClusterSnapshot) -> list[GroupView]:
    """Return users' groups with lag; the group that needs help most comes first."""
    behind = [each for each in snapshot.groups.values() if each.lag and not each.is_system]
    return sorted(behind, key=lambda each: (LEVELS.index(each.level), -each.delay_ms, -each.lag, each.name))


def problems_of(snapshot: ClusterSnapshot) -> list[Problem]:
    """Return the problems of the cluster, worst first: brokers, then groups as in `groups_behind`."""
    found = []
    if snapshot.fault is not None:
        text = f"{snapshot.fault[:1].upper()}{snapshot.fault[1:]} since {time_text(snapshot.fault_since_ms)}; brokers"
        found.append(Problem("bad", f"{text} and topics are the last known ones", "/doctor"))
    found += [problem for broker in snapshot.brokers.values() for problem in _problems_of(broker, snapshot.at_ms)]
    for group in snapshot.groups.values():
        if group.differs:
            text = f"Members of group {group.name} subscribe differently, and miss messages"
            found.append(Problem("bad", text, address("groups", group.name)))
    for group in groups_behind(snapshot):
        if group.level != "calm" or not group.members:
            waits = f", the oldest waits for {duration(group.delay_ms / 1000)}" if group.delay_ms else ""
            online = f"{counted(len(group.members), 'member')} online" if group.members else "no member is online"
            text = f"Group {group.name} is {counted(group.lag, 'message')} behind{waits}; {online}"
            found.append(Problem(OF_LEVELS[group.level], text, address("groups", group.name)))
    letters = sum(each.dead_letters for each in snapshot.groups.values())
    if letters:
        found.append(
            Problem("note", f"{counted(letters, 'dead letter')}: messages that groups gave up", "/dead-letters")
        )
    return sorted(found, key=lambda each: KINDS.index(each.kind))


def _problems_of(broker: BrokerView, at_ms: int) -> Iterator[Problem]:
    line, link = RuntimeFigures(broker), address("brokers", broker.name)
    if broker.error is not None:
        since = time_text(broker.error_since_ms)
        yield Problem("bad", f"Broker {broker.name} {broker.silence} since {since}: {broker.error}", link)
    if line.refusal:
        yield Problem("bad", f"Broker {broker.name} accepts no messages: {line.refusal}", link)
    elif line.disk is not None and line.disk >= DISK_WARNING:
        kind = "bad" if line.disk >= DISK_TROUBLE else "warn"
        yield Problem(kind, f"Broker {broker.name}: its disk is {line.disk:.0%} full", link)
    if line.set_trouble:
        yield Problem("bad", f"Replica set {broker.name}: {line.set_trouble}", link)
    if line.not_in_sync:
        text = f"Replica set {broker.name}: {counted(len(line.not_in_sync), 'replica')} not in sync"
        yield Problem("warn", f"{text} (number {', '.join(line.not_in_sync)})", link)
    if line.now_ms is not None and abs(off_ms := line.now_ms - at_ms) > CLOCK_WARNING_MS:
        side = "ahead of" if off_ms > 0 else "behind"
        text = f"Broker {broker.name}: its clock is {duration(abs(off_ms) / 1000)} {side} the console's"
        yield Problem("warn", f"{text}, so store times and the last 15 min are not those of this clock", link)
    if fault := broker.runtime.get("pyromqPermissionsFault"):
        yield Problem("bad", f"Broker {broker.name}: its files of accounts are broken: {fault}", link)


ROUTES = [view("/", overview), view("/doctor", doctor)]
