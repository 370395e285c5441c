"""A message's body as people read it: JSON as a tree, text as text, anything else as hex."""

from __future__ import annotations

from typing import Any

import msgspec

from pyromq.errors import UndecodableBody, UsageError
from pyromq.excerpt import escaped
from pyromq.message import StoredMessage

MOST_SHOWN = 256 << 10  # bytes of one body on its page
MOST_TREE = 64 << 10  # bytes of JSON that is drawn as a tree
EXCERPT = 160  # characters in a row
FORMS = ("text", "hex")


class BodyView:
    """`kind` is json, text or binary; `error` is why a compressed body cannot be read."""

    def __init__(self, message: StoredMessage) -> None:
        self.error: str | None = None
        self.tree: Any = None
        self.is_damaged = message.is_damaged
        try:
            self.data = message.body
        except UndecodableBody as error:
            self.data, self.error = message.stored_body, str(error)
        self.size = len(self.data)
        self.stored_size = len(message.stored_body)
        try:
            text = self.data.decode()
            is_text = all(each.isprintable() or each in "\r\n\t" for each in text[:2000])
        except UnicodeDecodeError:
            text, is_text = "", False
        self.kind = "text" if is_text else "binary"
        self.text = text if is_text else ""
        if is_text and text.lstrip()[:1] in ("{", "["):
            try:
                value = msgspec.json.decode(self.data)
            except msgspec.DecodeError:
                return
            self.kind = "json"
            self.tree = value if self.size <= MOST_TREE else None

    @property
    def is_cut(self) -> bool:
        return self.size > MOST_SHOWN

    @property
    def shown(self) -> str:
        """The body as text, JSON with line breaks; hex for what is no text."""
        if self.kind == "binary":
            return hex_lines(self.data[: MOST_SHOWN // 8])
        if self.kind == "json" and not self.is_cut:
            return msgspec.json.format(self.data, indent=2).decode()
        return self.text[:MOST_SHOWN]

    @property
    def excerpt(self) -> str:
        """The beginning, on one line."""
        if self.kind == "binary":
            return self.data[:24].hex(" ") + (" …" if self.size > 24 else "")
        line = escaped(" ".join(self.text[: 4 * EXCERPT].split()))
        return line if len(line) <= EXCERPT else line[:EXCERPT] + "…"


def hex_lines(data: bytes) -> str:
    """Return offset, hex and what is printable, 16 bytes a line."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        plain = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {plain}")
    return "\n".join(lines)


def encoded(text: str, form: str) -> bytes:
    """Return the bytes of a body that was typed as text or as hex. Raises `UsageError`."""
    if form == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise UsageError(f"the body is no hex: {error}") from error
    return text.replace("\r\n", "\n").encode()  # as browsers send the lines of a field
