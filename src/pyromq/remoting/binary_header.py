"""The binary (ROCKETMQ) form of a command's header; see `command` for where each field lies.

Source: RocketMQ 4.9.8, RocketMQSerializable.
"""

from __future__ import annotations

import struct

from pyromq.errors import ProtocolError
from pyromq.remoting.codes import VERSION, Language

# Code, opaque, flag, version, language, remark, fields.
BinaryHeader = tuple[int, int, int, int, int, str | None, dict[str, str]]

_BINARY_HEAD = struct.Struct(">hBhii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


def decode_binary(header: bytes) -> BinaryHeader:
    """Read a binary header. Raises `ProtocolError` for what is none."""
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header)
        remark, position = _read_text(header, _BINARY_HEAD.size, _INT)
        size = _INT.unpack_from(header, position)[0]
        position += 4
        end = position + size
        if size < 0 or end > len(header):
            raise ProtocolError(f"binary header: {size} bytes of fields, {len(header) - position} are left")
        fields = {}
        while position < end:
            key, position = _read_text(header, position, _SHORT)
            value, position = _read_text(header, position, _INT)
            if value:  # a value of no bytes counts as absent
                fields[key] = value
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"binary header of {len(header)} bytes cannot be read: {error}") from error
    return code, opaque, flag, version, language, remark or None, fields


def _read_text(header: bytes, position: int, length: struct.Struct) -> tuple[str, int]:
    start = position + length.size
    size = length.unpack_from(header, position)[0]
    if size < 0 or start + size > len(header):
        raise ProtocolError(f"binary header: a text of {size} bytes at byte {position} of {len(header)}")
    return header[start : start + size].decode(), start + size


def encode_binary(code: int, fields: dict[str, str], *, opaque: int, flag: int, remark: str | None) -> bytes:
    """Return the header; a text of None is written as one of no bytes."""
    entries: list[bytes] = []
    for name, value in fields.items():
        key, text = name.encode(), value.encode()
        entries += (_SHORT.pack(len(key)), key, _INT.pack(len(text)), text)
    ext = b"".join(entries)
    text = (remark or "").encode()
    head = _BINARY_HEAD.pack(code, Language.PYTHON, VERSION, opaque, flag)
    return b"".join((head, _INT.pack(len(text)), text, _INT.pack(len(ext)), ext))
