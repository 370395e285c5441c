"""Writes `speedups/constants.pxd`: formats, names and codes as the Python sources declare them, for the compiled parts.

    python scripts/make_constants.py

`scripts/build-speedups` runs it before it compiles; a test compares the file with what would be written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from struct import Struct, calcsize

os.environ["PYROMQ_PURE"] = "1"  # read when pyromq is imported: the compiled parts may be older than their constants

from pyromq import record
from pyromq.broker.delays import timer_records
from pyromq.message import NAME_VALUE, PAIRS, Property
from pyromq.remoting import codes, command, signer
from pyromq.remoting.header import Header, wire_layout
from pyromq.remoting.headers import PopMessage, PullMessage, SendMessage, SendMessageResponse, SendMessageV2
from pyromq.remoting.headers.pop_headers import MAX_POPPED
from pyromq.store.index import index_file
from pyromq.store.queue import consume_queue
from pyromq.store.queue_dispatcher import UNQUEUED
from pyromq.store.timers import timer_bucket
from pyromq.sys_flag import SysFlag

FOLDER = Path(__file__).parent.parent / "src/pyromq/speedups"
FILE = FOLDER / "constants.pxd"

LINES = '''\
# Written by scripts/make_constants.py from the Python sources: change a constant there.
from libc.stdint cimport int64_t

cdef enum:
{numbers}

cdef extern from *:
    """
{defined}
    """
{declared}
'''


def numbers() -> dict[str, int]:
    """Return the constants that fit an enum: positions in formats, numbers of header fields, bits, sizes and codes."""
    found = {f"RECORD_{name.upper()}_AT": at for name, at in record.FIELD_AT.items()}
    found |= {
        "RECORD_BODY_AT": record.BODY_AT,
        "RECORD_FIXED_BYTES": record.FIXED_SIZE,
        "RECORD_MAGIC": record.MAGIC,
        "MAX_TEXT": record.MAX_PROPERTIES_SIZE,
        "MAX_TOPIC": record.MAX_TOPIC_SIZE,
        "IPV4_BYTES": record.IPV4_BYTES,
        "IPV6_BYTES": record.IPV4_BYTES + record.IPV6_MORE,
    }
    found |= _places("MEMBER", record.MEMBER_HEAD, "size", "magic", "body_crc", "flag", "body_size")
    found |= _places("QUEUE_ENTRY", consume_queue.ENTRY, "log_offset", "size", "tags_code")
    found |= _places(
        "INDEX_HEADER",
        index_file.HEADER,
        *("begin_ms", "end_ms", "begin_log_offset", "end_log_offset", "used_slots", "next_entry"),
    )
    found |= _places("INDEX_SLOT", index_file.SLOT, "entry")
    found |= _places("INDEX_ENTRY", index_file.ENTRY, "key_hash", "log_offset", "seconds", "previous")
    found |= _places(
        "TIMER_ENTRY",
        timer_bucket.ENTRY,
        *("due_ms", "key_hash", "topic_hash", "log_offset", "checksum", "records_end_high", "records_end_low", "size"),
    )
    found |= {
        "FILLER_SIZE": consume_queue.FILLER_SIZE,
        "HOUR_MS": timer_bucket.HOUR_MS,
        "COMPRESSED": SysFlag.COMPRESSED,
        "ROLLBACK": SysFlag.ROLLBACK,
        "UNQUEUED": UNQUEUED,
        "BORN_HOST_IPV6": SysFlag.BORN_HOST_IPV6,
        "STORE_HOST_IPV6": SysFlag.STORE_HOST_IPV6,
        "HOST_FLAGS": SysFlag.BORN_HOST_IPV6 | SysFlag.STORE_HOST_IPV6,
        "NAME_VALUE": ord(NAME_VALUE),
        "PAIRS": ord(PAIRS),
        "RESPONSE": codes.RESPONSE,
        "ONE_WAY": codes.ONE_WAY,
        "COMMIT_OFFSET": codes.PullFlag.COMMIT_OFFSET,
        "SEND_CODE": int(SendMessageV2.code),
        "JSON_HEADER": command.JSON,
        "BINARY_HEADER": command.BINARY,
        "MAX_FRAME_BYTES": command.MAX_FRAME_BYTES,
        "MAX_HEADER_BYTES": command.MAX_HEADER_BYTES,
        "MAX_POPPED": MAX_POPPED,
    }
    return found | _fields("SEND", SendMessage) | _fields("PULL", PullMessage) | _fields("POP", PopMessage)


def names() -> dict[str, str]:
    """Return the texts that are compared with: names of properties and of header fields."""
    found = {name: text for name, text in vars(Property).items() if name.isupper()}
    found["TIMER"] = Property.TIMER_DELAY_MS.partition("_")[0]
    found |= {f"{field.attribute.upper()}_FIELD": field.wire_name for field in wire_layout(SendMessageResponse)}
    return found | {
        "ACCESS_KEY": signer.ACCESS_KEY,
        "SIGNATURE": signer.SIGNATURE,
        "UNIQUE_KEY_QUERY": signer.UNIQUE_KEY_QUERY,
    }


def written() -> str:
    """Return the content of the file: the constants that compiled parts use."""
    used = set(re.findall(r"[A-Z]\w+", "".join(source.read_text() for source in sorted(FOLDER.glob("*.pyx")))))
    defined = [f"#define PYROMQ_LATEST_MS {timer_records.LATEST_MS}LL"]
    declared = ['int64_t LATEST_MS "PYROMQ_LATEST_MS"']
    for name, text in names().items():
        uses = [f'const char* {name} "PYROMQ_{name}"'] * (name in used)
        uses += [f'Py_ssize_t {name}_SIZE "(sizeof PYROMQ_{name} - 1)"'] * (f"{name}_SIZE" in used)
        defined += [f'#define PYROMQ_{name} "{text}"'] * bool(uses)
        declared += uses
    return LINES.format(
        numbers=_indented(f"{name} = {number:#x}" for name, number in numbers().items() if name in used),
        defined=_indented(defined),
        declared=_indented(declared),
    )


def _places(prefix: str, struct: Struct, *fields: str) -> dict[str, int]:
    """Return where each field of a format is, and the size of all."""
    order, *kinds = struct.format
    assert len(kinds) == len(fields), f"{prefix} has {len(kinds)} fields, not {len(fields)}"
    found = {f"{prefix}_{name.upper()}_AT": calcsize(order + "".join(kinds[:at])) for at, name in enumerate(fields)}
    return found | {f"{prefix}_BYTES": struct.size}


def _fields(prefix: str, header: type[Header]) -> dict[str, int]:
    """Return the numbers of a header's fields, in the order of their declaration."""
    return {f"{prefix}_{field.attribute.upper()}": number for number, field in enumerate(wire_layout(header))}


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)


def main() -> None:
    text = written()
    if not FILE.exists() or FILE.read_text() != text:  # a new time of change would compile everything again
        FILE.write_text(text)


if __name__ == "__main__":
    main()
