"""Writes messages to files: lines of JSON as `pyromq consume -o json` prints them, or CSV for spreadsheets."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterable
from typing import Any

from pyromq.clock import iso_time
from pyromq.errors import UndecodableBody
from pyromq.message import StoredMessage

MAX_EXPORTED = 10_000
COLUMNS = ("stored", "topic", "broker", "queue", "offset", "id", "keys", "tag", "properties", "body")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def record(message: StoredMessage) -> dict[str, Any]:
    """Return a message as a JSON object.

    A body that is text has the key `body`, any other body the key `body_base64`.
    """
    found: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "message_id": message.message_id,
        "store_time": iso_time(message.store_ms),
        "born_time": iso_time(message.born_ms),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "reconsume_times": message.reconsume_times,
    }
    try:
        data = message.body
    except UndecodableBody:
        data = message.stored_body
    try:
        found["body"] = data.decode()
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(data).decode()
    return found


def json_line(message: StoredMessage) -> bytes:
    return json.dumps(record(message), ensure_ascii=False).encode() + b"\n"


def csv_head() -> bytes:
    return _line(COLUMNS)


def csv_line(message: StoredMessage) -> bytes:
    """Return the cells as a line of CSV. A cell that a spreadsheet would calculate gets an apostrophe in front."""
    fields = record(message)
    return _line(
        (
            fields["store_time"] or "",
            message.topic,
            message.broker_name,
            str(message.queue_id),
            str(message.queue_offset),
            message.message_id,
            " ".join(message.keys),
            message.tags or "",
            json.dumps(message.properties, ensure_ascii=False),
            fields.get("body", fields.get("body_base64", "")),
        )
    )


def _line(cells: Iterable[str]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(["'" + each if each.startswith(_FORMULA) else each for each in cells])
    return out.getvalue().encode()
