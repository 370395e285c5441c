"""All topics, and creating one."""

from __future__ import annotations

from starlette.responses import Response

from pyromq.console.cluster.snapshot import TopicView
from pyromq.console.security.accounts import Role
from pyromq.console.view.request_context import RequestContext, address
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table

KINDS = ("normal", "retry", "dead letters", "system", "all")


async def topics(visit: RequestContext) -> Response:
    snapshot = await (await visit.clients()).snapshot()
    kind = visit.query.get("kind") if visit.query.get("kind") in KINDS else "normal"
    rate = visit.history.rate
    table = Table[TopicView](
        [each for each in snapshot.topics.values() if kind in ("all", each.kind)],
        visit.query,
        columns={
            "name": lambda each: each.name.casefold(),
            "queues": lambda each: (each.read_queues, each.name),
            "messages": lambda each: (each.messages, each.name),
            "rate": lambda each: (rate("sent", each.name) or 0.0, each.name),
            "last": lambda each: (each.last_store_ms, each.name),
            "groups": lambda each: (len(each.groups), each.name),
        },
        sort="name",
        text=lambda each: each.name,
    )
    return visit.show("topics.html", table=table, kind=kind, kinds=KINDS, snapshot=snapshot)


async def new_topic(visit: RequestContext) -> Response:
    snapshot = await (await visit.clients()).snapshot()
    return visit.show("topic_new.html", snapshot=snapshot)


async def create(visit: RequestContext) -> Response:
    name = visit.form.get("name", "").strip()
    admin = await (await visit.clients()).admin()
    await admin.create_topic(
        name,
        visit.whole("queues", least=1, most=65535),
        permission=visit.form.get("permission", "rw"),
        order="order" in visit.form,
        broker=visit.form.get("broker") or None,
    )
    return visit.done(f"Topic {name} is created.", address("topics", name))


ROUTES = [
    view("/topics", topics),
    view("/new-topic", new_topic, needs=Role.ADMIN),
    change("/new-topic", create, needs=Role.ADMIN, what="create topic"),
]
