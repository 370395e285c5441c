r"""What `pyromq consume -f` prints of a message: a text with fields, as `%k %v\n`.

Fields are for pipes: bodies go out as they came, without a line's end unless the text has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pyromq.clock import local_time
from pyromq.errors import UsageError
from pyromq.message import StoredMessage

FIELDS: dict[str, tuple[str, Callable[[StoredMessage], str | bytes]]] = {
    "v": ("body", lambda message: message.body),
    "k": ("keys, separated by spaces", lambda message: " ".join(message.keys)),
    "g": ("tag", lambda message: message.tags or ""),
    "t": ("topic", lambda message: message.topic),
    "b": ("broker", lambda message: message.broker_name),
    "q": ("queue", lambda message: str(message.queue_id)),
    "o": ("queue offset", lambda message: str(message.queue_offset)),
    "i": ("message id", lambda message: message.message_id),
    "T": ("time it was stored, ISO 8601", lambda message: _time(message.store_ms)),
    "S": ("bytes of the body", lambda message: str(len(message.body))),
    "r": ("attempts that have failed", lambda message: str(message.reconsume_times)),
}
_LIST = ", ".join(f"%{letter} {text}" for letter, (text, _) in FIELDS.items())
HELP = _LIST + r", %{NAME} property, %% percent, \n \t \0"

_PART = re.compile(r"%(?:(%)|([a-zA-Z])|\{([^}]+)\})|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Part = Callable[[StoredMessage], str | bytes]


def parse_format(text: str) -> Callable[[StoredMessage], bytes]:
    """Return what makes a message's bytes. Raises `UsageError` naming a field that does not exist."""
    parts: list[Part] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise UsageError(f"{text[position:]!r} in format {text!r}: a field is {HELP}")
        parts.append(_part(match, text))
        position = match.end()

    def formatted(message: StoredMessage) -> bytes:
        return b"".join([_bytes(part(message)) for part in parts])

    return formatted


def _part(match: re.Match[str], text: str) -> Part:
    percent, letter, name, escape, plain = match.groups()
    if letter is not None:
        if letter not in FIELDS:
            raise UsageError(f"%{letter} in format {text!r} is no field; there are {HELP}")
        return FIELDS[letter][1]
    if name is not None:
        return lambda message: message.properties.get(name, "")
    if escape is not None:
        constant = bytes.fromhex(escape[1:]) if escape[0] == "x" and len(escape) == 3 else _ESCAPES.get(escape)
        if constant is None:
            raise UsageError(f"\\{escape} in format {text!r} is unknown; there are \\n, \\t, \\r, \\0, \\xNN and \\\\")
    else:
        constant = (percent or plain).encode()
    return lambda message: constant


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _time(ms: int) -> str:
    time = local_time(ms)
    return time.isoformat(timespec="milliseconds") if time is not None else ""
