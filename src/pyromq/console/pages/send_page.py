"""The page that sends a new message, or a copy of a stored message.

The copy may be edited, and sent to another topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.responses import Response

from pyromq.console.search.bodies import FORMS, BodyView, encoded
from pyromq.console.security.console_accounts import Role
from pyromq.console.view.request_context import MAX_INT, MAX_LONG, RequestContext, address, whole
from pyromq.console.view.routing import MAX_MESSAGE_FORM_BYTES, change, view
from pyromq.errors import MQError, UsageError
from pyromq.message import RESERVED_PROPERTIES, Message, MessageQueue, SendStatus

MAX_COPIED = 4 << 20  # limit of a copied body: the default limit of brokers, which fits into a form as hex
NO_PROPERTY = RESERVED_PROPERTIES  # properties that the form does not take: producers and brokers set them


async def form(context: RequestContext) -> Response:
    """Show a form for a message.

    If the address names a stored message (`topic`, `broker`, `queue`, `offset`), the form has its content.
    """
    query = context.query
    if not query.get("broker"):
        return _shown(context, {"topic": query.get("topic", ""), "form": "text"})
    queue_id = whole("queue", query.get("queue", ""), most=MAX_INT)
    offset = whole("offset", query.get("offset", ""), most=MAX_LONG)
    queue = MessageQueue(query.get("topic", ""), query["broker"], queue_id)
    message = await (await context.clients().admin()).view_at(queue, offset)
    body = await asyncio.to_thread(BodyView, message)
    if body.size > MAX_COPIED:
        raise UsageError(f"this message cannot be copied here: its body has {body.size:,} bytes, over {MAX_COPIED:,}")
    if body.error is not None or body.is_damaged:
        raise UsageError(f"this message cannot be copied: {body.error or 'its body does not match its checksum'}")
    own = {name: value for name, value in message.properties.items() if name not in NO_PROPERTY}
    fields = {
        "topic": message.original_topic,
        "tag": message.tags or "",
        "keys": " ".join(message.keys),
        "properties": "\n".join(f"{name}={value}" for name, value in own.items()),
        **_body_fields(body),
        "copy_of": message.message_id,
    }
    return _shown(context, fields)


def _body_fields(body: BodyView) -> dict[str, str]:
    try:
        if body.kind != "binary":
            return {"form": "text", "body": body.data.decode()}
    except UnicodeDecodeError:
        pass  # only the beginning of the body is text
    return {"form": "hex", "body": body.data.hex()}


async def send(context: RequestContext) -> Response:
    form = context.form
    try:
        message = message_of(form, deliver_at=context.time("deliver_at"))
        result = await (await context.clients().producer()).send(message)
    except MQError as error:
        return _shown(context, form, error=context.failed(error))
    queue = result.queue
    link = address("message", queue.topic, queue.broker_name, str(queue.queue_id), str(result.queue_offset))
    if message.is_timed or message.delay_level:
        return context.done(
            f"Message {result.message_id} is stored; it waits for its time.", address("messages", topic=message.topic)
        )
    text = f"Message {result.message_id} is stored in queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"
    if result.status is not SendStatus.OK:
        text += f", but less safely: {result.status.value}"
    return context.done(
        f"{text}, offset {result.queue_offset}.",
        address("messages", topic=message.topic),
        link=link,
        link_text="Show it",
    )


def message_of(fields: Mapping[str, str], *, deliver_at: int | None = None) -> Message:
    """Return the message that a form describes. Raises `UsageError` and `IllegalMessage`."""
    how = fields.get("form", "text")
    if how not in FORMS:
        raise UsageError(f"form={how[:20]!r} is unknown; write a body as {' or '.join(FORMS)}")
    properties = {}
    for line in fields.get("properties", "").splitlines():
        if line.strip():
            name, sign, value = line.partition("=")
            if not sign:
                raise UsageError(f"property {line[:60]!r} is not of the form name=value")
            properties[name.strip()] = value
    return Message(
        fields.get("topic", "").strip(),
        encoded(fields.get("body", ""), how),
        tags=fields.get("tag", "").strip() or None,
        keys=tuple(fields.get("keys", "").split()),
        properties=properties,
        deliver_at=deliver_at,
    )


def _shown(context: RequestContext, values: Mapping[str, str], *, error: MQError | None = None) -> Response:
    status = 400 if error is not None else 200
    return context.show("send.html", status=status, fields=values, error=error, forms=FORMS)


ROUTES = [
    view("/send", form, needs=Role.OPERATOR),
    change("/send", send, needs=Role.OPERATOR, what="send message", max_form_bytes=MAX_MESSAGE_FORM_BYTES),
]
