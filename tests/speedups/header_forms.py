"""Headers of hot requests in any form, drawn from a `Random`: mostly sound, some of them odd or damaged."""

from __future__ import annotations

import struct
from random import Random

from tests.speedups.hot_headers import HOT, golden

from pyromq.remoting.command import BINARY, JSON
from pyromq.remoting.header import WireField, wire_layout

# A code, how the header is written, the header.
Form = tuple[int, int, bytes]

TEXTS = [
    "",
    "t",
    "orders",
    "TAGS\x01a\x02KEYS\x01k\x02",
    "é中😀",
    '"\\/',
    "\b\f\n\r\t",
    "<&>\x7f",
    "%RETRY%g",
    "a%b",
    "null",
]
WORDS = ["", "0", "-0", "00", "01", "+1", "1 ", " 1", "1.0", "1e2", "-", "１", "true", "True", "false", "FALSE", "null",
         "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1_0", "0x1", "123456789012345678",
         "999999999999999999", "-999999999999999999", "1000000000000000000"]  # fmt: skip
BARE = [
    "0",
    "1",
    "-1",
    "-0",
    "01",
    "1.0",
    "1e3",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[1,{}]",
    "-",
    "",
    "999999999999999999",
]
BLANKS = ["", " ", "\n", "\t\r "] * 8 + ["\v", "\xa0"]
TOP = ["code", "opaque", "flag", "version", "extFields", "remark", "language", "body", "#body", "header", "cod\\u0065"]
CHANGES = [b'"', b"\\", b",", b":", b"0", b" ", b"}", b"{", b"\xc3", b"\x00", b"\\u0001", b"\\ud83d", b'""', b"-"]
_ESCAPES = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_HEAD = struct.Struct(">hBhii")


def any_form(random: Random) -> Form:
    """A header of one kind or another."""
    return random.choice(_FORMS)(random)


def json_form(random: Random) -> Form:
    """A JSON header: its members in any order, some missing, doubled, unknown or of another type."""
    code = random.choice(_CODES)
    layout = list(wire_layout(HOT[code]))
    if random.random() < 0.5:
        random.shuffle(layout)
    fields = [_json_field(random, f) for f in layout if random.random() < (0.998 if f.required else 0.5)]
    while random.random() < 0.2:
        name = random.choice([f.wire_name for f in layout] + TEXTS)
        of = WireField("", name, random.choice([int, bool, str]), False, None)
        fields.insert(random.randint(0, len(fields)), _json_field(random, of))
    top = [
        f'"language":{_json_text(random, random.choice(["JAVA", "GO", "CPP", "é"]))}',
        f'"version":{random.choice([0, 409, -1]) if random.random() < 0.98 else _number(random)}',
        f'"opaque":{random.getrandbits(31) if random.random() < 0.98 else _number(random)}',
        f'"flag":{random.choice([0, 2] * 20 + [1, 3, -1])}',
        '"serializeTypeCurrentRPC":"JSON"',
        f'"extFields":{_joined(random, fields)}',
        f'"remark":{_json_text(random, random.choice(TEXTS))}',
    ]
    random.shuffle(top)
    top = top[: random.choice([7] * 20 + [6])]
    if random.random() < 0.05:
        top.insert(random.randint(0, len(top)), f'"{random.choice(TOP)}":{random.choice(BARE)}')
    spelled = random.choice(
        [str(code)] * 99 + [f"0{code}", f"{code}.0", f'"{code}"', f"{code} ", f"{code}0", f"-{code}"]
    )
    top.insert(0 if random.random() < 0.98 else random.randint(0, 3), f'"code":{spelled}')
    return code, JSON, (_joined(random, top) + random.choice(BLANKS)).encode()


def _json_field(random: Random, f: WireField) -> str:
    roll = random.random()
    if roll < 0.004:
        value = random.choice(BARE)
    elif roll < 0.01:
        value = f'"{random.choice(WORDS)}"'
    elif f.kind is str:
        value = _json_text(random, "".join(random.choices(TEXTS, k=random.choice([1, 1, 2, 5]))))
    elif f.kind is bool:
        value = random.choice(['"true"', '"false"'])
    else:
        value = f'"{_number(random)}"' if random.random() < 0.8 else str(_number(random))
    name = _json_text(random, f.wire_name) if random.random() < 0.005 else _plain(f.wire_name)
    if random.random() < 0.9:
        return f"{name}:{value}"
    return f"{name}{random.choice(BLANKS)}:{random.choice(BLANKS)}{value}"


def _number(random: Random) -> int:
    roll = random.random()
    if roll < 0.7:
        return random.randint(-2, 40)
    bits = random.choice([7, 31, 32, 41, 59]) if roll < 0.99 else random.choice([60, 62, 63, 64])
    return random.choice([1, -1]) * random.choice([random.getrandbits(bits), 1 << bits, (1 << bits) - 1])


def _plain(text: str) -> str:
    """Return a text as JSON with no escape but those that must be."""
    return '"' + "".join(_ESCAPES.get(c, f"\\u{ord(c):04x}" if c < " " else c) if c != "/" else c for c in text) + '"'


def _json_text(random: Random, text: str) -> str:
    """Return a text as JSON: plain, or with any of its characters escaped in any way."""
    if random.random() < 0.9:
        return _plain(text)
    return '"' + "".join(_spelled(random, c) for c in text) + '"'


def _spelled(random: Random, character: str) -> str:
    roll = random.random()
    if roll < 0.4 and character not in '"\\' and character >= " ":
        return character
    if roll < 0.7 and character in _ESCAPES:
        return _ESCAPES[character]
    raw = character.encode("utf-16-be")
    form = "\\u%04x" if roll < 0.9 else "\\u%04X"
    return "".join(form % unit for unit in struct.unpack(f">{len(raw) // 2}H", raw))


def _joined(random: Random, members: list[str]) -> str:
    if random.random() < 0.8:
        return "{" + ",".join(members) + "}"
    blank = random.choice(BLANKS)
    return f"{{{random.choice(BLANKS)}" + f"{blank},{random.choice(BLANKS)}".join(members) + blank + "}"


def binary_form(random: Random) -> Form:
    """A binary header: fields missing, doubled, unknown, sizes sometimes wrong."""
    code = random.choice(_BINARY_CODES)
    layout = list(wire_layout(HOT[code]))
    if random.random() < 0.5:
        random.shuffle(layout)
    entries = []
    for f in layout:
        for _ in range(random.choice([1] * 200 + [0, 2])):
            text = {int: str(_number(random)), bool: random.choice(["true", "false"]), str: random.choice(TEXTS)}[
                f.kind
            ]
            text = random.choice(WORDS) if random.random() < 0.01 else text or "x"
            entries.append(_entry(random, f.wire_name.encode(), text.encode()))
    while random.random() < 0.2:
        unknown = _entry(random, random.choice(TEXTS).encode(), random.choice([*TEXTS, "x" * 300]).encode())
        entries.insert(random.randint(0, len(entries)), unknown)
    fields = b"".join(entries)
    flag = random.choice([0, 2] * 20 + [1, -1])
    opaque = random.choice([random.randint(-9, 99), random.getrandbits(31), -(1 << 31)])
    head = _HEAD.pack(code, random.randint(0, 255), random.randint(-9, 999), opaque, flag)
    remark = random.choice([b""] * 20 + [b"x", b"\xff"])
    size = len(fields) + random.choice([0] * 20 + [-1, 1, 1 << 20])
    return code, BINARY, head + struct.pack(">i", len(remark)) + remark + struct.pack(">i", size) + fields


def _entry(random: Random, name: bytes, value: bytes) -> bytes:
    off = random.choice([-1, 1, -70_000, 1 << 30]) if random.random() < 0.004 else 0
    return struct.pack(">H", len(name)) + name + struct.pack(">i", len(value) + off) + value


def changed_form(random: Random) -> Form:
    """A header that a genuine client sent, or any other form, with some of its bytes changed, gone or doubled."""
    code, serialization, raw = random.choice(golden())[1:] if random.random() < 0.7 else _sound_form(random)
    changed = bytearray(raw)
    for _ in range(random.choice([1, 1, 1, 1, 2, 2, 5])):
        change_bytes(random, changed, CHANGES)
    return code, serialization, bytes(changed)


def cut_form(random: Random) -> Form:
    """A header that ends too early."""
    code, serialization, raw = random.choice(golden())[1:] if random.random() < 0.5 else _sound_form(random)
    return code, serialization, raw[: random.randint(0, len(raw))]


def change_bytes(random: Random, changed: bytearray, words: list[bytes]) -> None:
    """Change a bit, a byte, or a few of them: flipped, replaced, put in, left out or doubled."""
    at = random.randrange(len(changed) or 1)
    way = random.randrange(6)
    if way == 0 and changed:
        changed[at] ^= 1 << random.randrange(8)
    elif way == 1:
        changed[at : at + 1] = random.randbytes(1)
    elif way == 2:
        changed[at:at] = random.choice(words)
    elif way == 3:
        word = random.choice(words)
        changed[at : at + len(word)] = word
    elif way == 4:
        del changed[at : at + random.choice([1, 1, 2, 4, 20])]
    else:
        changed[at:at] = changed[at : at + random.choice([1, 4, 20, 60])]


def _sound_form(random: Random) -> Form:
    return random.choice([json_form, binary_form])(random)


_CODES = sorted(HOT)
_BINARY_CODES = [code for code in _CODES if code < 1 << 15]  # a binary header has two bytes for the code
_FORMS = [json_form, json_form, binary_form, changed_form, changed_form, cut_form]
