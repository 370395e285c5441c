"""Pages of one topic: its queues, rates, producers, groups and settings."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.console.cluster.cluster_snapshot import KINDS, TopicView, kind_of
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.request_context import RequestContext, address, or_error
from pyromq.console.view.routing import change, view
from pyromq.console.view.table import Table
from pyromq.errors import MQError, TopicNotFound, UsageError
from pyromq.remoting.bodies import MESSAGE_TYPES


async def topic(context: RequestContext) -> Response:
    name = context.path["name"]
    clients = context.clients()
    admin = await clients.admin()
    snapshot = await clients.snapshot_with(name, lambda each: each.topics)
    if name not in snapshot.topics and not snapshot.silent:
        raise TopicNotFound(f"topic {name} does not exist")
    queues, configs, producers = await asyncio.gather(
        or_error(admin.topic_status(name, partial=True)),
        or_error(admin.topic_configs(name, partial=True)),
        or_error(_producers(admin)),
    )
    table = None
    if not isinstance(queues, MQError):
        table = Table(
            queues,
            context.query,
            columns={
                "queue": lambda each: each.queue,
                "messages": lambda each: each.max_offset - each.min_offset,
                "last": lambda each: each.last_store_ms,
            },
            sort="queue",
        )
    groups = snapshot.groups_of(name)
    lines = sorted(groups, key=lambda each: (-each.topics[name].lag, each.name))[:1]
    return context.show(
        "topic.html",
        name=name,
        kind=kind_of(name, snapshot.brokers),
        topic=snapshot.topics.get(name),
        snapshot=snapshot,
        table=table,
        queues=queues,
        configs=configs,
        message_types=MESSAGE_TYPES,
        producers=producers,
        groups=groups,
        into=context.rate_line("in", "sent", name),
        behind=[context.value_line(each.name, "lag", each.name, "two") for each in lines],
    )


async def alter(context: RequestContext) -> Response:
    name = context.path["name"]
    admin = await context.clients().admin()
    await admin.alter_topic(
        name,
        read_queues=context.whole("read_queues", least=0, most=65535),
        write_queues=context.whole("write_queues", least=0, most=65535),
        permission=context.form.get("permission", "rw"),
        order="order" in context.form,
        message_type=context.form.get("message_type") or None,
        broker=context.form.get("broker") or None,
    )
    return context.done(f"Settings of topic {name} are changed.", address("topics", name))


async def delete(context: RequestContext) -> Response:
    name = context.path["name"]
    if context.form.get("name") != name:
        raise UsageError(f"nothing was deleted: type the topic's name, {name}, to delete it")
    await (await context.clients().admin()).delete_topic(name)
    return context.done(f"Topic {name} is deleted.", "/topics")


async def _producers(admin: AsyncAdmin) -> dict[str, list[str]]:
    """Return all connected producers by producer group. Brokers do not know to which topic a producer sends."""
    found = await admin.members.producers()
    return {group: [each.client_id for each in clients] for group, clients in found.items()}


async def topics(context: RequestContext) -> Response:
    snapshot = await context.clients().snapshot()
    kind = context.query.get("kind") if context.query.get("kind") in KINDS else "normal"
    rate = context.history.rate
    table = Table[TopicView](
        [each for each in snapshot.topics.values() if kind in ("all", each.kind)],
        context.query,
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
    return context.show("topics.html", table=table, kind=kind, kinds=KINDS, snapshot=snapshot)


async def new_topic(context: RequestContext) -> Response:
    snapshot = await context.clients().snapshot()
    return context.show("topic_new.html", snapshot=snapshot, message_types=MESSAGE_TYPES)


async def create(context: RequestContext) -> Response:
    name = context.form.get("name", "").strip()
    admin = await context.clients().admin()
    await admin.create_topic(
        name,
        context.whole("queues", least=1, most=65535),
        permission=context.form.get("permission", "rw"),
        order="order" in context.form,
        message_type=context.form.get("message_type") or None,
        broker=context.form.get("broker") or None,
    )
    return context.done(f"Topic {name} is created.", address("topics", name))


ROUTES = [
    view("/topics/{name}", topic),
    change("/topics/{name}/alter", alter, needs=Role.ADMIN, what="change topic"),
    change("/topics/{name}/delete", delete, needs=Role.ADMIN, what="delete topic"),
    view("/topics", topics),
    view("/new-topic", new_topic, needs=Role.ADMIN),
    change("/new-topic", create, needs=Role.ADMIN, what="create topic"),
]
