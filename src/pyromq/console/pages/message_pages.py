"""Pages of one message: its content, its life, and its body as a file."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from starlette.responses import Response

from pyromq.console.search.bodies import BodyView
from pyromq.console.view.request_context import MAX_INT, MAX_LONG, RequestContext, whole
from pyromq.console.view.routing import view
from pyromq.errors import MQError
from pyromq.message import MessageQueue, Property, StoredMessage

LIFE_SECONDS = 10.0  # time limit of a page with a message's life, which needs a request for every group of the topic


async def message(context: RequestContext) -> Response:
    found = await stored(context)
    admin = await context.clients().admin()
    try:
        async with asyncio.timeout(LIFE_SECONDS):
            life = await admin.message_life(found.message_id, found.original_topic)
        error = None
    except (MQError, TimeoutError) as failed:
        life, error = [], str(failed) or f"no answer within {LIFE_SECONDS:g} s"
    body = await asyncio.to_thread(BodyView, found)
    return context.show("message.html", message=found, body=body, life=life, life_error=error, names=Property)


async def body(context: RequestContext) -> Response:
    """Send the body of a message as a file, byte for byte."""
    found = await stored(context)
    view_of = await asyncio.to_thread(BodyView, found)
    name = quote(f"{found.topic}-{found.queue_id}-{found.queue_offset}.{'json' if view_of.kind == 'json' else 'bin'}")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(view_of.data, media_type="application/octet-stream", headers=headers)


async def stored(context: RequestContext) -> StoredMessage:
    """Return the message at the queue and offset in the address."""
    at = context.path
    queue = MessageQueue(at["topic"], at["broker"], whole("queue", at["queue"], most=MAX_INT))
    offset = whole("offset", at["offset"], most=MAX_LONG)
    return await (await context.clients().admin()).view_at(queue, offset)


_PLACE = "/message/{topic}/{broker}/{queue}/{offset}"


ROUTES = [
    view(_PLACE, message),
    view(_PLACE + "/body", body),
]
