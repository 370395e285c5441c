"""Pages of one group: lag, members and their queues, subscriptions, settings, and the reset of offsets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from starlette.responses import Response

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.admin.cluster_offsets import QueueProgress
from pyromq.console.cluster.cluster_clients import ClusterClients
from pyromq.console.cluster.cluster_snapshot import GroupView
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.request_context import RequestContext, address, or_error
from pyromq.console.view.routing import change, status_of, view
from pyromq.console.view.table import Table
from pyromq.errors import ConsumerNotOnline, GroupNotFound, MQError, UsageError
from pyromq.message import MessageQueue
from pyromq.names import RETRY_PREFIX
from pyromq.plural import counted
from pyromq.remoting.bodies import ConsumerRunning, GroupConfig

SHOWS = ("all", "behind", "no member online", "members differ", "system")

MEMBER_SECONDS = 2.0  # time limit for the responses in which members list their queues
PLACES = ("begin", "end", "time", "offset")


async def group(context: RequestContext) -> Response:
    name = context.path["name"]
    clients = context.clients()
    admin = await clients.admin()
    snapshot = await clients.snapshot_with(name, lambda each: each.groups)
    if name not in snapshot.groups and not snapshot.silent:
        raise GroupNotFound(f"group {name} does not exist")
    progress, state, configs, owners = await asyncio.gather(
        or_error(admin.group_progress(name, partial=True)),
        or_error(admin.group_state(name)),
        or_error(admin.group_configs(name)),
        _owners(admin, name),
    )
    table = None
    if not isinstance(progress, MQError):
        table = Table[QueueProgress](
            progress,
            context.query,
            columns={"queue": lambda each: each.queue, "lag": lambda each: (each.lag, each.queue)},
            sort="queue",
            text=lambda each: " ".join((each.queue.topic, each.queue.broker_name, *owners.get(each.queue, []))),
        )
    locks = {} if isinstance(state, MQError) or state.locks is None else {each.queue: each for each in state.locks}
    found = snapshot.groups.get(name)
    return context.show(
        "group.html",
        name=name,
        group=found,
        snapshot=snapshot,
        table=table,
        progress=progress,
        state=state,
        configs=configs,
        owners=owners,
        locks=locks,
        lag_line=context.value_line("lag", "lag", name, now=found.lag if found else None),
        delay_line=context.value_line(
            "lag in time", "delay", name, "two", now=found.delay_ms / 1000 if found else None
        ),
        out_line=context.rate_line("consumed", "consumed", name),
    )


async def reset_form(context: RequestContext) -> Response:
    """Show what a reset would skip and redeliver, in all and in each queue, before offsets are reset."""
    name, query = context.path["name"], context.query
    clients = context.clients()
    snapshot = await clients.snapshot()
    view_of = snapshot.groups.get(name)
    topics = sorted(view_of.topics, key=lambda each: (each.startswith(RETRY_PREFIX), each)) if view_of else []
    topic, plan, error = query.get("topic", "").strip(), None, None
    to = "time" if query.get("last") else query.get("to", "")
    if topic and to:
        try:
            plan = await planned(clients, name, topic, to, place_of(context, to))
        except MQError as wrong:
            error = wrong
    return context.show(
        "group_reset.html",
        status=status_of(error) if error else 200,
        name=name,
        topics=topics,
        topic=topic
        or next((each for each in topics[:1] if len(topics) == 1 or topics[1].startswith(RETRY_PREFIX)), ""),
        to=to or "time",
        at=context.time_text("since" if query.get("last") else "at"),
        plan=plan,
        error=error,
        members=view_of.members if view_of is not None else set(),
        places=PLACES,
    )


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """The consumer offset of a queue before and after a reset; before is None if the group has no offset.

    `least` is the offset of the first stored message, `end` that of the next message.
    """

    queue: MessageQueue
    now: int | None
    then: int
    least: int
    end: int

    @property
    def skipped(self) -> int:
        return 0 if self.now is None else max(0, self.then - max(self.now, self.least))

    @property
    def redelivered(self) -> int:
        return 0 if self.now is None else max(0, min(self.now, self.end) - self.then)


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """What a reset does to a group in a topic. `at` is the time (ms) or the offset to which `to` refers."""

    moves: list[OffsetMove]
    topic: str
    to: str
    at: int | None

    @property
    def skipped(self) -> int:
        return sum(each.skipped for each in self.moves)

    @property
    def redelivered(self) -> int:
        return sum(each.redelivered for each in self.moves)

    @property
    def left(self) -> int:
        """The lag after the reset."""
        return sum(each.end - each.then for each in self.moves)

    @property
    def skips_everything(self) -> bool:
        return self.skipped > 0 and self.left == 0

    @property
    def effect(self) -> str:
        """The effect of the reset in words, for example `skips 4 messages and redelivers 2`."""
        if all(each.now is None for each in self.moves):
            return "sets the first offsets"
        parts = []
        if self.skipped:
            everything = f"skips all {self.skipped:,} unconsumed messages"
            parts.append(everything if self.skips_everything else f"skips {_messages(self.skipped)}")
        if self.redelivered:
            parts.append(f"redelivers {_messages(self.redelivered)}")
        return " and ".join(parts) or "skips and redelivers nothing"


def place_of(context: RequestContext, to: str) -> int | None:
    """Return the time (ms) or the offset in the fields of a reset, as `to` demands; None for the end.

    Raises `UsageError`.
    """
    if to not in PLACES:
        raise UsageError(f"to={to[:20]!r} is unknown; write {' or '.join(PLACES)}")
    if to == "time":
        time_ms = context.time_range().since_ms if context.fields.get("last") else context.time("at")
        if time_ms is None:
            raise UsageError("nothing was changed: the time is missing; enter the time from which the group continues")
        return time_ms
    if to == "offset":
        text = context.fields.get("offset", "").strip().replace(",", "")
        if not text.isdecimal() or len(text) > 18:
            raise UsageError(f"{text[:30]!r} is not an offset; write one whole number, which applies to every queue")
        return int(text)
    return 0 if to == "begin" else None


async def planned(clients: ClusterClients, group: str, topic: str, to: str, at: int | None) -> ResetPlan:
    """Return what a reset would do in each queue, in order of queues. Raises errors of brokers."""
    reader = await clients.reader()
    bounds = await reader.bounds([topic])
    committed = await reader.committed(bounds, group)
    if to == "time" and at is not None:
        found = await asyncio.gather(*(reader.first_since(queue, at, each) for queue, each in bounds.items()))
        places = dict(zip(bounds, found, strict=True))
    elif to == "offset" and at is not None:
        places = {queue: min(max(at, least), most) for queue, (least, most) in bounds.items()}
    else:
        places = {queue: least if to == "begin" else most for queue, (least, most) in bounds.items()}
    moves = [OffsetMove(queue, committed[queue], places[queue], *bounds[queue]) for queue in sorted(bounds)]
    return ResetPlan(moves, topic, to, at)


async def reset(context: RequestContext) -> Response:
    """Reset the offsets of a group.

    If members are online, the broker notifies them, which is possible only by time; else the offsets are stored.
    """
    name, form = context.path["name"], context.form
    topic, to = form.get("topic", ""), form.get("to", "")
    at = place_of(context, to)
    clients = context.clients()
    admin = await clients.admin()
    plan = await planned(clients, name, topic, to, at)
    how = ""
    if await _is_online(admin, name):
        if to == "offset":
            raise UsageError(
                f"nothing was changed: members of {name} are online, and would not use the new offsets; "
                "stop the members, or choose a time"
            )
        offsets = await admin.reset_offset(name, topic, at)
        moves = [replace(each, then=offsets.get(each.queue, each.then)) for each in plan.moves]
        plan, how = replace(plan, moves=moves), " Its members were notified."
    else:
        for move in plan.moves:
            await admin.commit_offset(name, move.queue, move.then)
    text = f"The reset of {name} {plan.effect} of {topic}, in {counted(len(plan.moves), 'queue')}.{how}"
    return context.done(text, address("groups", name))


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


async def alter(context: RequestContext) -> Response:
    name = context.path["name"]
    admin = await context.clients().admin()
    await admin.alter_group(
        name,
        retries=context.whole("retries", most=10_000),
        retry_queues=context.whole("retry_queues", least=1, most=1000),
        enabled="enabled" in context.form,
        broadcast="broadcast" in context.form,
    )
    return context.done(f"Settings of group {name} are changed.", address("groups", name))


async def delete(context: RequestContext) -> Response:
    name = context.path["name"]
    if context.form.get("name") != name:
        raise UsageError(f"nothing was deleted: type the group's name, {name}, to delete it")
    await (await context.clients().admin()).delete_group(name)
    return context.done(f"Group {name} is deleted.", "/groups")


async def _owners(admin: AsyncAdmin, group: str) -> dict[MessageQueue, list[str]]:
    """Return the members that list each queue as theirs. Members that do not respond in time are left out."""
    try:
        async with asyncio.timeout(MEMBER_SECONDS):
            states = await admin.members.all_running(group)
    except (MQError, TimeoutError):
        return {}
    owners: dict[MessageQueue, list[str]] = {}
    for client_id, running in states.items():
        if isinstance(running, ConsumerRunning):
            for queue in running.queues:
                owners.setdefault(queue, []).append(client_id)
    return owners


async def _is_online(admin: AsyncAdmin, group: str) -> bool:
    try:
        return bool((await admin.consumer_connection(group)).connections)
    except ConsumerNotOnline:
        return False


async def groups(context: RequestContext) -> Response:
    snapshot = await context.clients().snapshot()
    show = context.query.get("show") if context.query.get("show") in SHOWS else "all"
    rate = context.history.rate
    table = Table[GroupView](
        [each for each in snapshot.groups.values() if _is_shown(each, show or "all")],
        context.query,
        columns={
            "name": lambda each: each.name.casefold(),
            "members": lambda each: (len(each.members), each.name),
            "lag": lambda each: (each.lag, each.name),
            "delay": lambda each: (each.delay_ms, each.name),
            "rate": lambda each: (rate("consumed", each.name) or 0.0, each.name),
            "letters": lambda each: (each.dead_letters, each.name),
            "topics": lambda each: (len(each.topics), each.name),
        },
        sort="name",
        text=lambda each: f"{each.name} {' '.join(each.topics)}",
    )
    return context.show("groups.html", table=table, show=show, shows=SHOWS, snapshot=snapshot)


async def new_group(context: RequestContext) -> Response:
    return context.show("group_new.html")


async def create(context: RequestContext) -> Response:
    name = context.form.get("name", "").strip()
    config = GroupConfig(
        name=name,
        retry_max_times=context.whole("retries", most=10_000),
        retry_queues=context.whole("retry_queues", least=1, most=1000),
        broadcast_enabled="broadcast" in context.form,
    )
    await (await context.clients().admin()).create_group(config)
    return context.done(f"Group {name} is created.", address("groups", name))


def _is_shown(group: GroupView, show: str) -> bool:
    match show:
        case "behind":
            return group.lag > 0 and not group.is_system
        case "no member online":
            return not group.members and bool(group.topics) and not group.is_system
        case "members differ":
            return group.differs
        case "system":
            return group.is_system
        case _:
            return not group.is_system


ROUTES = [
    view("/groups/{name}", group),
    view("/groups/{name}/reset", reset_form, needs=Role.OPERATOR),
    change("/groups/{name}/reset", reset, needs=Role.OPERATOR, what="reset offsets"),
    change("/groups/{name}/alter", alter, needs=Role.ADMIN, what="change group"),
    change("/groups/{name}/delete", delete, needs=Role.ADMIN, what="delete group"),
    view("/groups", groups),
    view("/new-group", new_group, needs=Role.ADMIN),
    change("/new-group", create, needs=Role.ADMIN, what="create group"),
]
