"""Messages such as only a stranger sends: each is shown, or said to be unreadable, and hides no other."""

import zlib

from pyromq.message import NAME_VALUE, PAIRS, StoredMessage
from pyromq.sys_flag import SysFlag

ODD_BODIES = {
    "open lists": b"[" * 5000,
    "nested lists": b"[" * 5000 + b"]" * 5000,
    "nested objects": b'{"a":' * 900 + b"1" + b"}" * 900,
    "many values": b"[" + b"[]," * 20_000 + b"[]]",
    "a huge whole number": b"[1" + b"0" * 5000 + b"]",
    "a large whole number": b"[1" + b"0" * 400 + b"]",
    "a huge number": b'{"a": 1e400}',
    "not a number": b"[NaN, Infinity]",
    "half a character": b'["\\ud800"]',
    "no UTF-8": b'{"a": "\xff\xfe"}',
    "a cut character": ("x" * 2559 + "é" * 9).encode(),
    "controls": b"\x00\x1b[2J\x7f\x85\r\n",
    "bidi": "\u202e\u2028[1]\ufeff".encode(),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "one byte": b"{",
}
COMPRESSED = {
    "no zlib": b"no zlib at all",
    "cut zlib": zlib.compress(b"x" * 10_000)[:-10],
    "unfolds": zlib.compress(b"[" * (17 << 20)),  # to more than is decompressed
}
ODD_TIMES = (10**17, 2**63 - 1, -1, 0, -(2**63), 253_402_300_799_999, 253_402_300_800_000, 1)
ODD_PROPERTIES = (
    {"KEYS": "\x1b[2J", "TAGS": "<script>"},
    {"KEYS": " \u2028 ", "\u202e": "\x00", "TAGS": "\r\n"},
    {"UNIQ_KEY": "../../x?y#z%00", "KEYS": '"' * 300},
    {"DELAY": "99999999999999999999", "TIMER_DELIVER_MS": "soon", "RECONSUME_TIME": "-"},
)


def odd_messages(topic, **fields):
    """Return one of each kind."""

    def odd(body, **more):
        return StoredMessage(topic, body, **{"body_crc": zlib.crc32(body) & 0x7FFFFFFF, **fields, **more})

    return [
        *(odd(body) for body in ODD_BODIES.values()),
        *(odd(body, sys_flag=SysFlag.COMPRESSED) for body in COMPRESSED.values()),
        *(odd(b"odd codec", sys_flag=SysFlag.COMPRESSED | kind << 8) for kind in range(1, 8)),
        *(odd(b"odd time", born_ms=ms) for ms in ODD_TIMES),
        *(odd(b"odd properties", property_text=text_of(each)) for each in ODD_PROPERTIES),
        *(odd(b"odd text", property_text=text) for text in (PAIRS * 9, NAME_VALUE, "KEYS" + NAME_VALUE, "a" * 32_000)),
        odd(b"odd counts", reconsume_times=-1, queue_id=0, flag=-1),
        odd(b""),
    ]


def text_of(properties):
    return PAIRS.join(f"{name}{NAME_VALUE}{value}" for name, value in properties.items())
