"""One topic: what its queues hold, what goes in and out, who sends and who reads, its settings."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from pyromq.client.admin.admin import AsyncAdmin
from pyromq.console.cluster.snapshot import kind_of
from pyromq.console.security.accounts import Role
from pyromq.console.view.chart import Line
from pyromq.console.view.request_context import RequestContext, address, or_error
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.errors import MQError, TopicNotFound, UsageError


async def topic(visit: RequestContext) -> Response:
    name = visit.path["name"]
    clients = await visit.clients()
    admin = await clients.admin()
    snapshot = await clients.snapshot_with(name, lambda each: each.topics)
    if name not in snapshot.topics and not snapshot.silent:
        raise TopicNotFound(f"topic {name} does not exist")
    queues, configs, producers = await asyncio.gather(
        or_error(admin.topic_status(name)), or_error(admin.topic_configs(name)), or_error(_producers(admin, name))
    )
    table = None
    if not isinstance(queues, MQError):
        table = Table(
            queues,
            visit.query,
            columns={
                "queue": lambda each: each.queue,
                "messages": lambda each: each.max_offset - each.min_offset,
                "last": lambda each: each.last_store_ms,
            },
            sort="queue",
        )
    groups = snapshot.groups_of(name)
    lines = sorted(groups, key=lambda each: (-each.topics[name].lag, each.name))[:1]
    return visit.show(
        "topic.html",
        name=name,
        kind=kind_of(name, snapshot.brokers),
        topic=snapshot.topics.get(name),
        snapshot=snapshot,
        table=table,
        queues=queues,
        configs=configs,
        producers=producers,
        groups=groups,
        into=Line("in", visit.history.rates("sent", name)),
        behind=[Line(each.name, visit.history.values("lag", each.name), "two") for each in lines],
    )


async def alter(visit: RequestContext) -> Response:
    name = visit.path["name"]
    admin = await (await visit.clients()).admin()
    await admin.alter_topic(
        name,
        read_queues=visit.whole("read_queues", least=0, most=65535),
        write_queues=visit.whole("write_queues", least=0, most=65535),
        permission=visit.form.get("permission", "rw"),
        order="order" in visit.form,
        broker=visit.form.get("broker") or None,
    )
    return visit.done(f"Settings of topic {name} are changed.", address("topics", name))


async def delete(visit: RequestContext) -> Response:
    name = visit.path["name"]
    if visit.form.get("name") != name:
        raise UsageError(f"nothing was deleted: type the topic's name, {name}, to delete it")
    await (await (await visit.clients()).admin()).delete_topic(name)
    return visit.done(f"Topic {name} is deleted.", "/topics")


async def _producers(admin: AsyncAdmin, topic: str) -> dict[str, list[str]]:
    """Return clients of producer groups by group. Brokers know who sends, not to which topic: these are all."""
    found = await admin.members.producers()
    return {group: [each.client_id for each in clients] for group, clients in found.items()}


ROUTES = [
    view("/topics/{name}", topic),
    change("/topics/{name}/alter", alter, needs=Role.ADMIN, what="change topic"),
    change("/topics/{name}/delete", delete, needs=Role.ADMIN, what="delete topic"),
]
