"""Pages of one message: its content, its life, and its body as a file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import Response

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.admin.messages.message_life import LifeEvent, sent_to
from pyromq.console.search.bodies import BodyView
from pyromq.console.search.message_outcome import (
    ORIGINAL,
    GroupOutcome,
    copies_of,
    copy_name,
    outcomes_of,
    stored_event,
)
from pyromq.console.search.search import named
from pyromq.console.view.request_context import MAX_INT, MAX_LONG, RequestContext, address, or_error, whole
from pyromq.console.view.routing import view
from pyromq.errors import MQError
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import NOT_FOR_CLIENTS, SCHEDULE_TOPIC

FEW = 12  # limit of events and copies that are shown unfolded
LIFE_SECONDS = 10.0  # time limit of a page with a message's life, which needs a request for every group of the topic


async def message(context: RequestContext) -> Response:
    """Show a message with all its copies; the address names one of them."""
    shown = await stored(context)
    admin = await context.clients().admin()
    topic, _ = sent_to(shown)
    life: list[LifeEvent] = []
    error = None
    try:
        async with asyncio.timeout(LIFE_SECONDS):
            life = await admin.message_life(shown.message_id, shown.topic)
    except (MQError, TimeoutError) as failed:
        error = str(failed) or f"no answer within {LIFE_SECONDS:g} s"
    body = await asyncio.to_thread(BodyView, shown)
    copies = copies_of(life, shown)
    return context.show(
        "message.html",
        message=shown,
        name=copy_name(shown),
        name_of=copy_name,
        original_name=ORIGINAL,
        sent_to=topic,
        body=body,
        life=life,
        life_error=error,
        outcomes=outcomes_of(life or [stored_event(shown)]),
        copies=copies,
        waits=await _waits(admin, copies),
        few=FEW,
        link_of=link_of,
        has_place=has_place(shown),
        redrive_fields=redrive_fields,
        redrive_link=redrive_link,
    )


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a copy waits in its delay level, in ms, and until when (ms since 1970)."""

    level: int
    delay_ms: int
    due_ms: int


async def _waits(admin: AsyncAdmin, copies: Sequence[StoredMessage]) -> dict[str, Wait]:
    """Return how long each copy in a delay level still waits, by its offset id; {} if brokers do not answer."""
    parked = [each for each in copies if each.topic == SCHEDULE_TOPIC]
    levels = await or_error(admin.delay_levels.all()) if parked else []
    if isinstance(levels, MQError):
        return {}
    delays = {(each.broker_name, each.level): each.delay_ms for each in levels}
    found = {}
    for each in parked:
        level = each.queue_id + 1  # as brokers number the queues of delay levels
        if (delay_ms := delays.get((each.broker_name, level))) is not None:
            found[each.offset_message_id] = Wait(level, delay_ms, each.store_ms + delay_ms)
    return found


def has_place(message: StoredMessage) -> bool:
    """Return True if a message can be pulled at its queue offset. Brokers refuse pulls from their internal topics."""
    return message.topic not in NOT_FOR_CLIENTS and bool(message.broker_name)


def link_of(message: StoredMessage) -> str:
    """Return the address of the page of a stored message: by its place, or by its offset id."""
    if not has_place(message):
        return address("message-by-id", message.offset_message_id)
    return address("message", message.topic, message.broker_name, str(message.queue_id), str(message.queue_offset))


def redrive_fields(each: GroupOutcome) -> dict[str, str]:
    """Return the fields of the form that redrives the dead letter of a group to the group."""
    again = {"again": "yes"} if each.is_redriven else {}
    return {**_choice(each), "to": "group", "most": "1", "rate": "100", **again}


def redrive_link(each: GroupOutcome) -> str:
    """Return the address of the dry run for the dead letter of a group."""
    return address("dead-letters", each.group, "redrive", **_choice(each))


def _choice(each: GroupOutcome) -> dict[str, str]:
    assert each.letter is not None
    died = str(each.letter.store_ms)  # with the time, the message is found without reading the whole queue
    return {"id": each.letter.offset_message_id, "since": died, "until": died}


async def body(context: RequestContext) -> Response:
    """Send the body of a message as a file, byte for byte."""
    found = await stored(context)
    view_of = await asyncio.to_thread(BodyView, found)
    name = quote(f"{found.topic}-{found.queue_id}-{found.queue_offset}.{'json' if view_of.kind == 'json' else 'bin'}")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(view_of.data, media_type="application/octet-stream", headers=headers)


async def stored(context: RequestContext) -> StoredMessage:
    """Return the message at the queue and offset in the address, or with the offset id in the address."""
    at, admin = context.path, await context.clients().admin()
    if "id" in at:
        return await named(context.clients(), await admin.view(at["id"]))
    queue = MessageQueue(at["topic"], at["broker"], whole("queue", at["queue"], most=MAX_INT))
    return await admin.view_at(queue, whole("offset", at["offset"], most=MAX_LONG))


PLACES = ("/message/{topic}/{broker}/{queue}/{offset}", "/message-by-id/{id}")


ROUTES = [
    *(view(place, message) for place in PLACES),
    *(view(place + "/body", body) for place in PLACES),
]
