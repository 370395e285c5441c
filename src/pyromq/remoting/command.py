"""Commands on the wire: splits bytes into frames, encodes and decodes headers in JSON and in binary (ROCKETMQ) form.

    frame           bytes  type
    length          4      int   of everything after this field
    mark            4      int   top byte: serialization of the header (0 JSON, 1 binary); low 24 bits: its length
    header          n
    body            rest

    JSON header     {"code":310,"extFields":{...},"flag":0,"language":"JAVA","opaque":7,
                     "remark":"...","serializeTypeCurrentRPC":"JSON","version":409}
    binary header   bytes  type
    code            2      short
    language        1      byte
    version         2      short
    opaque          4      int
    flag            4      int
    remark          4 + n
    ext fields      4 + n  entries: key length short, key, value length int, value

A received request becomes a `Call` whose `header` is the struct declared for its code. A received response becomes a
`Response` whose fields stay text until the caller, who knows the request, decodes them.
Source: RocketMQ 4.9.8, RemotingCommand, RocketMQSerializable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import msgspec

from pyromq import speedups
from pyromq.errors import FrameTooLarge, MQError, ProtocolError, from_response
from pyromq.remoting import headers  # noqa: F401  the declarations register themselves as subclasses of Header
from pyromq.remoting.codes import RESPONSE, VERSION, Language
from pyromq.remoting.header import Filled, H, Header, HeaderTemplate, parse_header, request_headers, wire_fields
from pyromq.remoting.signer import Signer, frame_signer

MAX_FRAME_BYTES = 16_777_216  # RocketMQ's limit of a frame (com.rocketmq.remoting.frameMaxLength), length word included
JSON = 0
BINARY = 1

_WORDS = struct.Struct(">II")
_pack_words = _WORDS.pack
_unpack_words = _WORDS.unpack_from
_LARGE_PIECE = 4096  # least size of received pieces of an incomplete frame that are not copied

# A frame: serialization, header, body (may be empty). A plain tuple, because every command has a frame.
Frame = tuple[int, bytes, bytes]

# Called with serialization, header and frame size once a header is complete; returns whether a large frame is taken.
Admit = Callable[[int, bytes, int], bool]


class FrameSplitter:
    """Splits received bytes into frames, and keeps an incomplete frame until its last byte arrives.

    `header_bytes` limits a header. `admit` is called for frames larger than this limit; a refused frame is skipped.
    `broken` is true if invalid bytes follow the frames that `split` returned: the next call of `split` raises, even
    without data.
    """

    __slots__ = (
        "_admit",
        "_is_sound",
        "_max",
        "_max_header",
        "_needed",
        "_parts",
        "_skipped_bytes",
        "_small",
        "broken",
        "incomplete_bytes",
    )

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        *,
        header_bytes: int = MAX_FRAME_BYTES,
        admit: Admit | None = None,
    ) -> None:
        self.broken = False
        self.incomplete_bytes = 0  # number of bytes received of the incomplete frame
        self._max = max_frame_bytes
        self._max_header = header_bytes
        # Largest frame that is taken without a call of `admit`.
        self._small = max_frame_bytes if admit is None else min(header_bytes, max_frame_bytes)
        self._admit = admit
        # Pieces of the incomplete frame, joined when the frame is complete.
        self._parts: list[bytes | bytearray] | tuple[()] = ()
        self._needed = 8  # size of the incomplete frame, or of the part that must arrive before the size is known
        self._is_sound = False  # whether the incomplete frame is valid and admitted
        self._skipped_bytes = 0  # bytes still to arrive of a frame that is skipped

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame is incomplete: more of its bytes must arrive."""
        return self.incomplete_bytes > 0 or self._skipped_bytes > 0

    @property
    def beginning(self) -> bytes:
        """The first bytes of the incomplete frame, at most 60."""
        return bytes(self._parts[0][:60]) if self._parts else b""

    def split(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order.

        Raises `FrameTooLarge` or `ProtocolError` for invalid bytes: the connection must then be closed.
        """
        frames: list[Frame] = []
        position = 0
        if self._skipped_bytes:
            position = min(self._skipped_bytes, len(data))
            self._skipped_bytes -= position
        elif self._parts:
            missing = self._needed - self.incomplete_bytes
            if len(data) < missing:
                self._keep(data)
                return frames
            if self._is_sound:
                frames.append(self._take(data, missing))
                position = missing
            else:
                data = b"".join((*self._parts, data))
            self._parts = ()
            self.incomplete_bytes = 0
        end = len(data)
        self._needed = 8
        self._is_sound = False
        while end - position >= 8:
            length, mark = _unpack_words(data, position)
            header_at = position + 8
            body_at = header_at + (mark & 0xFFFFFF)
            frame_end = position + 4 + length
            if body_at > frame_end or length + 4 > self._small:
                if self._fault(length, mark) is not None:
                    if not frames:
                        self._refuse(length, mark)
                    self.broken = True
                    break
                if body_at > end:
                    self._needed = body_at - position
                    break
                if self._admit is not None and not self._admit(mark >> 24, data[header_at:body_at], length + 4):
                    self._skipped_bytes = max(frame_end - end, 0)
                    position = min(frame_end, end)
                    continue
            if frame_end > end:
                self._needed = frame_end - position
                self._is_sound = True
                break
            frames.append((mark >> 24, data[header_at:body_at], data[body_at:frame_end]))
            position = frame_end
        if position < end:
            if not frames:
                self._check_early(data, position, end)
            self._keep(data[position:] if position else data)
        return frames

    def _keep(self, data: bytes) -> None:
        """Keep a piece of the incomplete frame. Small pieces are joined, because many objects take more memory."""
        self.incomplete_bytes += len(data)
        parts = self._parts = self._parts or []
        if len(data) >= _LARGE_PIECE:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def _take(self, data: bytes, missing: int) -> Frame:
        """Return the valid incomplete frame, completed by the first `missing` bytes of `data`."""
        parts = [memoryview(part) for part in (*self._parts, data)]
        parts[-1] = parts[-1][:missing]
        mark = _unpack_words(parts[0])[1]
        body_at = 8 + (mark & 0xFFFFFF)
        if len(parts[0]) < body_at:
            parts = [memoryview(b"".join(parts))]
        header = bytes(parts[0][8:body_at])
        parts[0] = parts[0][body_at:]
        return mark >> 24, header, b"".join(parts)

    def _check_early(self, data: bytes, position: int, end: int) -> None:
        """Raise for an oversized frame as soon as its length is known, before the second word arrives."""
        if 4 <= end - position < 8 and (length := int.from_bytes(data[position : position + 4])) + 4 > self._max:
            self._refuse(length, 0)

    def _fault(self, length: int, mark: int) -> ProtocolError | None:
        """Return the error for a frame that begins with these two words; None if both are valid."""
        header_size = mark & 0xFFFFFF
        if length + 4 > self._max:
            return FrameTooLarge(f"frame of {length} bytes; the limit is {self._max - 4}")
        if 4 + header_size > length:
            return ProtocolError(f"frame of {length} bytes claims a header of {header_size}")
        if header_size > self._max_header:
            return FrameTooLarge(f"header of {header_size} bytes; the limit is {self._max_header} (maxHeaderBytes)")
        return None

    def _refuse(self, length: int, mark: int) -> None:
        why = self._fault(length, mark)
        if why is not None:
            try:
                raise why
            finally:
                del why  # else error and traceback refer to each other and keep the connection until garbage collection


def frame_words(serialization: int, header_size: int, body_size: int) -> bytes:
    """Return the two words before a frame's header: length and mark."""
    return _pack_words(4 + header_size + body_size, serialization << 24 | header_size)


# The values of a decoded header: code, opaque, flag, version, language, remark, fields.
BinaryHeader = tuple[int, int, int, int, int, str | None, dict[str, str]]

_BINARY_HEAD = struct.Struct(">hBhii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")

if speedups.is_active:
    from pyromq.speedups.requests import RequestWriter

_to_json = msgspec.json.Encoder().encode
_LANGUAGE = Language.PYTHON.name.encode()
_TAIL = b'"serializeTypeCurrentRPC":"JSON","version":%d' % VERSION


class Call(msgspec.Struct):
    """A received request. If the fields do not fit the code, `header` is None and `fault` is the error."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str = "JAVA"
    version: int = 0
    header: Header | None = msgspec.field(name="extFields", default=None)
    # The next eight fields are never on the wire: decoding overwrites them.
    body: bytes = msgspec.field(name="#body", default=b"")
    serialization: int = msgspec.field(name="#serialization", default=JSON)
    fault: Any = msgspec.field(name="#fault", default=None)  # MQError | None
    # Dict[str, str] | None: the undecoded fields, if a guard needs them.
    fields: Any = msgspec.field(name="#fields", default=None)
    hooked: Any = msgspec.field(name="#hooked", default=None)  # RemotingRequest | None: as passed to hooks
    peer: Any = msgspec.field(name="#peer", default=None)  # the `Peer` that sent the request
    # Account whose permissions apply, set by the guard; None: no account.
    account: str | None = msgspec.field(name="#account", default=None)


class Response(msgspec.Struct):
    """A received response. `fields` has the texts of the header fields."""

    code: int
    opaque: int
    flag: int = RESPONSE
    version: int = 0
    remark: str | None = None
    fields: dict[str, Any] = {}
    body: bytes = b""

    def header(self, declared: type[H]) -> H:
        """Return the fields decoded as the declared header. Raises `ProtocolError` if the fields do not fit."""
        try:
            return msgspec.convert(self.fields, declared, strict=False)
        except msgspec.ValidationError:  # the tolerant decoder accepts more, or names the fault
            return parse_header(declared, self.fields)

    def check(self, *also: int) -> Response:
        """Return this response if its code is SUCCESS or one of `also`. Otherwise raise the error of the code."""
        if self.code and self.code not in also:
            raise from_response(self.code, self.remark)
        return self


class Reply(msgspec.Struct):
    """The reply to a request. `body` may be a list of memory views, for example of records, copied when sent."""

    header: Header | None = None
    body: bytes | list[memoryview] = b""
    code: int = 0
    remark: str | None = None


class ReplyTemplate:
    """A reply prepared for compiled code, in which only some header fields vary.

    `variables` (in the header's order), `formats` and `constants` are as in `HeaderTemplate`.
    """

    def __init__(
        self,
        header: type[Header],
        variables: tuple[str, ...],
        *,
        code: int = 0,
        remark: str | None = None,
        formats: Mapping[str, str] | None = None,
        **constants: str | int,
    ) -> None:
        self.code = code
        self.remark = remark
        self._header = HeaderTemplate(header, variables, formats=formats, **constants)
        escaped = None if remark is None else remark.replace("%", "%%")
        # The JSON header with placeholders for the variables and the opaque.
        self.line = _json_line(code, self._header.ext_json, flag=b"%d" % RESPONSE, opaque=b"%d", remark=escaped)

    def binary(self) -> tuple[bytes, list[tuple[bytes, bytes, int]]]:
        """Return the binary header up to its fields, and the fields as `HeaderTemplate.entries` does.

        The opaque is 0; each name is preceded by its length.
        """
        head = encode_binary(self.code, {}, opaque=0, flag=RESPONSE, remark=self.remark)[:-4]
        entries = [(name.encode(), text.encode(), number) for name, text, number in self._header.entries()]
        return head, [(len(name).to_bytes(2) + name, text, number) for name, text, number in entries]

    def reply(self, values: tuple[int | bytes, ...], body: bytes | list[memoryview] = b"") -> Reply:
        """Return the reply with these values of the variables, in the template's order."""
        return Reply(self._header.header(values), body, self.code, self.remark)


def own_bytes(reply: Reply) -> int:
    """Return the size of the body of a reply if the body is bytes; 0 if the body is memory views of files."""
    return len(reply.body) if isinstance(reply.body, bytes) else 0


# Limit of a header: properties have at most 32 KiB, in JSON six times as much. Decoding this size takes 4 ms.
MAX_HEADER_BYTES = 1 << 18

_LARGEST_BINARY_CODE = 0x7FFF
_HEADERS = request_headers()
# The second is for invalid UTF-8, the third for too deep nesting.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _call_class(header: type[Header]) -> type[Call]:
    """Return a `Call` class whose `extFields`, absent only if all are optional, decode into the declared header."""
    optional = all(not f.required for f in msgspec.structs.fields(header))
    ext = msgspec.field(name="extFields", default_factory=header) if optional else msgspec.field(name="extFields")
    call = msgspec.defstruct(
        f"{header.__name__}Call",
        [("code", int), ("header", header, ext)] if not optional else [("header", header, ext)],
        bases=(Call,),
        kw_only=True,
        gc=False,
    )
    return cast("type[Call]", call)


# The declared headers by the first bytes of a JSON header, up to the comma, as Java, Go and C++ write it.
_DECLARED = {b'{"code":%d' % code: header for code, header in _HEADERS.items()}


@cache  # made at its first use: the decoders of all codes take 40 ms of a start
def _decoder(beginning: bytes) -> Callable[[bytes], Call]:
    return msgspec.json.Decoder(_call_class(_DECLARED[beginning]), strict=False).decode


def decode_request(serialization: int, header: bytes, body: bytes) -> Call | Response:
    """Return the `Call` of a frame that is probably a request. Raises `ProtocolError` for an invalid header."""
    if serialization == JSON and len(header) <= MAX_HEADER_BYTES:
        beginning = header[: header.find(b",", 8, 20)]
        if beginning in _DECLARED:
            try:
                call = _decoder(beginning)(header)
            except _UNREADABLE:
                pass  # a value of another type, a missing field, or no JSON: decoded tolerantly below
            else:
                if not call.flag & RESPONSE:
                    call.body = body
                    call.serialization = JSON
                    call.account = None
                    return call
    return _decode_tolerantly(serialization, header, body)


def decode_request_with_fields(serialization: int, header: bytes, body: bytes) -> Call | Response:
    """Decode as `decode_request` does. The call keeps its undecoded fields, for guards that verify signatures."""
    command = decode_request(serialization, header, body)
    if isinstance(command, Call):
        raw = _decode_json(header) if serialization == JSON else _Raw(*decode_binary(header))
        command.fields = raw.extFields or {}
    return command


def decode_response(serialization: int, header: bytes, body: bytes) -> Call | Response:
    """Return the `Response` of a frame, or its `Call`. Raises `ProtocolError` for an invalid header."""
    if serialization == JSON and len(header) <= MAX_HEADER_BYTES:
        try:
            raw = _RAW.decode(header)
        except _UNREADABLE:
            return _decode_tolerantly(serialization, header, body)
        if raw.flag & RESPONSE:
            return Response(raw.code, raw.opaque, raw.flag, raw.version, raw.remark, raw.extFields or {}, body)
    return _decode_tolerantly(serialization, header, body)


class _Raw(msgspec.Struct, gc=False):
    """Any JSON header of a command, with undecoded fields."""

    code: int = 0
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: Any = None
    remark: Any = None
    extFields: dict[str, Any] | None = None


_RAW = msgspec.json.Decoder(_Raw, strict=False)


def _decode_tolerantly(serialization: int, header: bytes, body: bytes) -> Call | Response:
    if len(header) > MAX_HEADER_BYTES:
        raise ProtocolError(f"header of {len(header)} bytes; the limit is {MAX_HEADER_BYTES}")
    if serialization == JSON:
        raw = _decode_json(header)
    elif serialization == BINARY:
        raw = _Raw(*decode_binary(header))
    else:
        raise ProtocolError(f"header serialization {serialization} is unknown; 0 is JSON, 1 is binary")
    fields = raw.extFields or {}
    remark = None if raw.remark is None else str(raw.remark)
    if raw.flag & RESPONSE:
        return Response(raw.code, raw.opaque, raw.flag, raw.version, remark, fields, body)
    call = Call(raw.code, raw.opaque, raw.flag, _language_name(raw.language), raw.version)
    call.body = body
    call.serialization = serialization
    declared = _HEADERS.get(raw.code)
    if declared is not None:
        try:
            call.header = parse_header(declared, fields)
        except MQError as error:
            # The traceback refers to the call: without a traceback, no cycle waits for the garbage collector.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            call.fault = error
    return call


def _decode_json(header: bytes) -> _Raw:
    try:
        return _RAW.decode(header)
    except _UNREADABLE as error:
        raise ProtocolError(f"JSON header of {len(header)} bytes cannot be read: {error}") from error


def _language_name(language: Any) -> str:
    """Return the name of a language code. As in Java, an unknown language is not an error."""
    if isinstance(language, int) and not isinstance(language, bool):
        return Language(language).name if language in Language._value2member_map_ else "OTHER"
    return language if isinstance(language, str) and len(language) <= 20 and language.isprintable() else "JAVA"


def encode_request(
    header: Header | Filled,
    body: bytes,
    *,
    opaque: int,
    flag: int,
    serialization: int = JSON,
    signer: Signer | None = None,
) -> bytes:
    """Return the frame of a request. A code too large for a binary header is written as JSON."""
    if header.code > _LARGEST_BINARY_CODE:
        serialization = JSON
    frames_signer = None if signer is None else frame_signer(signer)
    if serialization == JSON and isinstance(header, Filled) and (signer is None or frames_signer is not None):
        template = header.template
        line = template.request_line or _prepare_request(template)
        writer = template.request_writer
        if writer is not None and (frame := writer.frame(header.values, flag, opaque, body)) is not None:
            unsigned = cast(bytes, frame)
        else:
            encoded = line % (*header.values, flag, opaque)
            unsigned = frame_words(JSON, len(encoded), len(body)) + encoded + body
        if frames_signer is None:
            return unsigned
        if (signed := frames_signer.sign(unsigned)) is not None:
            return signed
    fields = wire_fields(header.header if isinstance(header, Filled) else header)
    if signer is not None:
        if serialization == BINARY:  # peers read an empty string as absent, so the signature must not include the field
            fields = {name: value for name, value in fields.items() if value}
        fields |= signer.sign(fields, body)
    encoded = _encode_header(
        int(header.code), fields, opaque=opaque, flag=flag, remark=None, serialization=serialization
    )
    return frame_words(serialization, len(encoded), len(body)) + encoded + body


def _prepare_request(template: HeaderTemplate) -> bytes:
    """Return the JSON header with placeholders for the template's variables, the flag and the opaque."""
    template.request_line = _json_line(template.code, template.ext_json, flag=b"%d", opaque=b"%d", remark=None)
    if speedups.is_active:
        template.request_writer = RequestWriter(template.request_line)
    return template.request_line


def write_reply(reply: Reply, call: Call, output: list[bytes | memoryview]) -> int:
    """Append the frame of a reply, in the call's serialization, to `output`. Return its size in bytes."""
    serialization = call.serialization
    header = _encode_header(
        reply.code,
        None if reply.header is None else wire_fields(reply.header),
        opaque=call.opaque,
        flag=RESPONSE,
        remark=reply.remark,
        serialization=serialization,
    )
    body = reply.body if isinstance(reply.body, list) else [reply.body]
    body_size = sum(map(len, body))
    output.append(frame_words(serialization, len(header), body_size) + header)
    if body_size:
        output += body
    return 8 + len(header) + body_size


def with_code(reply: bytes, code: int, remark: str | None = None) -> bytes:
    """Return the frame of a reply without a body, with response code and remark replaced; None keeps the remark."""
    ((serialization, header, _),) = FrameSplitter().split(reply)
    response = decode_response(serialization, header, b"")
    assert isinstance(response, Response)
    changed = _encode_header(
        code,
        response.fields,
        opaque=response.opaque,
        flag=response.flag,
        remark=response.remark if remark is None else remark,
        serialization=serialization,
    )
    return frame_words(serialization, len(changed), 0) + changed


def _encode_header(
    code: int,
    fields: dict[str, str] | None,
    *,
    opaque: int,
    flag: int,
    remark: str | None,
    serialization: int,
) -> bytes:
    if serialization == BINARY:
        return encode_binary(code, fields or {}, opaque=opaque, flag=flag, remark=remark)
    encoded = None if fields is None else _to_json(fields)
    return _json_line(code, encoded, flag=b"%d" % flag, opaque=b"%d" % opaque, remark=remark)


def _json_line(code: int, fields: bytes | None, *, flag: bytes, opaque: bytes, remark: str | None) -> bytes:
    return b'{"code":%d,%b"flag":%b,"language":"%b","opaque":%b%b,%b}' % (
        code,
        b"" if fields is None else b'"extFields":%b,' % fields,
        flag,
        _LANGUAGE,
        opaque,
        b"" if remark is None else b',"remark":' + _to_json(remark),
        _TAIL,
    )


def decode_binary(header: bytes) -> BinaryHeader:
    """Return the values of a binary header. Raises `ProtocolError` for an invalid header."""
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
            if value:  # an empty value counts as an absent field
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
    """Return a binary header; a remark of None is written as an empty string."""
    entries: list[bytes] = []
    for name, value in fields.items():
        key, text = name.encode(), value.encode()
        entries += (_SHORT.pack(len(key)), key, _INT.pack(len(text)), text)
    ext = b"".join(entries)
    text = (remark or "").encode()
    head = _BINARY_HEAD.pack(code, Language.PYTHON, VERSION, opaque, flag)
    return b"".join((head, _INT.pack(len(text)), text, _INT.pack(len(ext)), ext))
