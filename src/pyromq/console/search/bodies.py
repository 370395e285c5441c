"""Shows message bodies to people: JSON as a tree, text as a string, everything else as hex."""

from __future__ import annotations

import unicodedata
from codecs import getincrementaldecoder
from typing import Any

import msgspec

from pyromq.compression import decompress_start
from pyromq.errors import UndecodableBody, UsageError
from pyromq.message import StoredMessage, SysFlag

MAX_SHOWN = 256 << 10  # limit of body bytes shown on the page of a message
MAX_TREE = 64 << 10  # limit of JSON that is shown as a tree (bytes)
MAX_DEPTH = 40  # limit of nested levels of JSON, indented by two spaces each
MAX_VALUES = 10_000  # limit of values in JSON, one per line: this many take a quarter of a second
EXCERPT = 160  # limit of characters of a body in the row of a list
# Bytes decompressed for an excerpt: characters have up to four bytes, and white space is dropped.
_EXCERPT_BYTES = 16 * EXCERPT
FORMS = ("text", "hex")
_CHECKED = 2000  # the first characters of a body decide whether the body is text
# Characters that change the direction of text: a reader would see another order than the body has.
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class BodyExcerpt:
    """The beginning of a body on one line, for the row of a list.

    Only the beginning of a compressed body is decompressed. `error` is the reason why a compressed body cannot be read.
    """

    def __init__(self, message: StoredMessage) -> None:
        self.error: str | None = None
        self.is_damaged = message.is_damaged
        try:
            start = _start_of(message)
        except UndecodableBody as error:
            start, self.error = message.stored_body[:_EXCERPT_BYTES], str(error)
        text = _text_of(start, is_whole=len(start) < _EXCERPT_BYTES)
        if text is None:
            self.excerpt = start[:24].hex(" ") + (" …" if len(start) > 24 else "")
        else:
            line = " ".join(text[:_CHECKED].split())
            self.excerpt = line if len(line) <= EXCERPT else line[:EXCERPT] + "…"


def _start_of(message: StoredMessage) -> bytes:
    if not message.sys_flag & SysFlag.COMPRESSED:
        return message.stored_body[:_EXCERPT_BYTES]
    return decompress_start(message.stored_body, message.sys_flag, _EXCERPT_BYTES)


class BodyView:
    """A whole body, prepared for a page.

    `kind` is json, text or binary; `error` is the reason why a compressed body cannot be read.

    Decompressing and parsing a large body takes a tenth of a second, so create this view in a thread.
    """

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
        text = _text_of(self.data[:MAX_SHOWN], is_whole=not self.is_cut)
        self.kind = "text" if text is not None else "binary"
        self.shown = text if text is not None else hex_lines(self.data[: MAX_SHOWN // 8])
        if text is not None and not self.is_cut and text.lstrip()[:1] in ("{", "["):
            self._show_json()

    @property
    def is_cut(self) -> bool:
        return self.size > MAX_SHOWN

    def _show_json(self) -> None:
        """Set the lines and the tree of a body that is JSON with limited depth and number of values."""
        try:
            value = msgspec.json.decode(self.data)
        except (ValueError, RecursionError):  # RecursionError: too deeply nested
            return
        self.kind = "json"
        if not _is_small(value):
            return
        self.shown = msgspec.json.format(self.data, indent=2).decode()
        self.tree = value if self.size <= MAX_TREE else None


def _text_of(data: bytes, *, is_whole: bool) -> str | None:
    """Return the beginning of a body as a string; None if it is not UTF-8, or has characters that cannot be shown."""
    try:
        text = getincrementaldecoder("utf-8")().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return None
    return text if text[:_CHECKED].isprintable() or all(map(_is_shown, text[:_CHECKED])) else None


def _is_shown(character: str) -> bool:
    """Return whether a browser shows a character. Wide spaces, and the joiners inside of emoji, count as shown."""
    if character.isprintable() or character in "\r\n\t":
        return True
    return unicodedata.category(character) in ("Zs", "Cf") and character not in _REORDERING


def _is_small(value: Any) -> bool:
    """Return whether a JSON value has few enough values and levels to be shown with one line per value."""
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        count += len(level)
        if not level or count > MAX_VALUES:
            break
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return not level and count <= MAX_VALUES


def hex_lines(data: bytes) -> str:
    """Return the bytes as lines of 16 bytes each: offset, hex, and printable characters."""
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        plain = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {plain}")
    return "\n".join(lines)


def encoded(text: str, form: str) -> bytes:
    """Return the bytes of a body that a user typed as a string or as hex. Raises `UsageError` for wrong hex."""
    if form == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise UsageError(f"the body is not hexadecimal: {error}") from error
    return text.replace("\r\n", "\n").encode()  # browsers send CR LF in text fields
