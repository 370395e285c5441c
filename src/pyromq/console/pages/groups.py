"""All consumer groups, and creating one."""

from __future__ import annotations

from starlette.responses import Response

from pyromq.console.cluster.snapshot import GroupView
from pyromq.console.security.accounts import Role
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.remoting.bodies import GroupConfig

SHOWS = ("all", "behind", "nobody online", "members differ", "system")


async def groups(visit: RequestContext) -> Response:
    snapshot = await (await visit.clients()).snapshot()
    show = visit.query.get("show") if visit.query.get("show") in SHOWS else "all"
    rate = visit.history.rate
    table = Table[GroupView](
        [each for each in snapshot.groups.values() if _is_shown(each, show or "all")],
        visit.query,
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
    return visit.show("groups.html", table=table, show=show, shows=SHOWS, snapshot=snapshot)


async def new_group(visit: RequestContext) -> Response:
    return visit.show("group_new.html")


async def create(visit: RequestContext) -> Response:
    name = visit.form.get("name", "").strip()
    config = GroupConfig(
        name=name,
        retry_max_times=visit.whole("retries", most=10_000),
        retry_queues=visit.whole("retry_queues", least=1, most=1000),
        broadcast_enabled="broadcast" in visit.form,
    )
    await (await (await visit.clients()).admin()).create_group(config)
    return visit.done(f"Group {name} is created.", address("groups", name))


def _is_shown(group: GroupView, show: str) -> bool:
    match show:
        case "behind":
            return group.lag > 0 and not group.is_system
        case "nobody online":
            return not group.members and bool(group.topics) and not group.is_system
        case "members differ":
            return group.differs
        case "system":
            return group.is_system
        case _:
            return not group.is_system


ROUTES = [
    view("/groups", groups),
    view("/new-group", new_group, needs=Role.ADMIN),
    change("/new-group", create, needs=Role.ADMIN, what="create group"),
]
