"""Feeds compiled units with sound, odd and damaged bytes, and compares all that they make of them with plain Python.

    PYROMQ_PURE=1 python -m tests.speedups.fuzz [N] [--seed SEED]

Runs in plain Python, with the units beside it; `make sanitize` has units that check every access to memory. What
differs is told with the seed of its piece, and as hex.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hmac
import json
import struct
import sys
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Callable
from functools import cache
from random import Random
from types import SimpleNamespace

from tests.seed import seed_of_the_day
from tests.speedups.drawn_requests import TAGS, Requests
from tests.speedups.header_forms import CHANGES, any_form, change_bytes
from tests.speedups.hot_headers import FRAMES, HOT, READERS, read
from tests.speedups.test_reply_writer import TEMPLATES, plainly, writer_of

from pyromq import speedups
from pyromq.client.client_config import ProducerConfig
from pyromq.client.producer.pending_send import prepare
from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.filter.filter import tag_hash
from pyromq.java_hash import java_hash
from pyromq.message import RESERVED_PROPERTIES, Message, StoredMessage, format_address
from pyromq.message_id import UniqueIds
from pyromq.permissions.account import Account
from pyromq.permissions.authentication import is_signed_by
from pyromq.record import BatchMember, decode, decode_all, decode_batch, encode, encode_batch, mark_addresses
from pyromq.remoting.command import (
    BINARY,
    JSON,
    MAX_FRAME_BYTES,
    Call,
    FrameSplitter,
    Response,
    decode_request,
    decode_request_with_fields,
    decode_response,
    encode_request,
)
from pyromq.remoting.header import wire_layout
from pyromq.remoting.signer import AccessKeySigner
from pyromq.speedups import batches, decoding, fast_acl, received, records, requests
from pyromq.store.batch_appends import Shape

PIECE = 1000  # rounds by one seed: what is told can be had again quickly
WORDS = [b"\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xda\xa3\x20\xa7", b"\x7f\xff"]
NUMBERS = [0, 1, -1, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63)]
BODIES = [b"x", b"y" * 63, b"z" * 64, bytes(range(256)), b"0" * 1000]
CONFIG = ProducerConfig(max_message_bytes=500, compress_from_bytes=300)
IDS = UniqueIds("127.0.0.1", SystemClock())
STORE_ADDRESS = bytes(range(8))
SECRETS = {"a" * size: "s" * size for size in (1, 8, 15, 16, 17, 63, 64, 65, 500)}  # by access key
WHITE, ANY_ADDRESS = bytes([10, 2, 2, 2]), bytes([10, 1, 1, 1])

_decoder = decoding.RecordDecoder(StoredMessage)
_writer = received.ReceivedWriter(
    {b"UNIQ_KEY": 3, b"TAGS": 1, b"KEYS": 2, b"HIDDEN": 0}, lambda _: b"0" * 32, format_address
)
_answers = requests.AnswerReader(Response, MAX_FRAME_BYTES)
_properties = requests.PropertyWriter(Message, RESERVED_PROPERTIES)
_writers = {name: writer_of(template) for name, template in TEMPLATES.items()}
_golden_answers: list[bytes] = []


def same(compiled: object, plain: object, raw: bytes) -> None:
    assert compiled == plain, f"compiled {compiled!r:.2000}\nplain    {plain!r:.2000}\nof       {raw.hex()}"


def headers(random: Random) -> None:
    """Headers of requests."""
    read(*any_form(random))


def stored_records(random: Random) -> None:
    """Records back to back, as pulls bring them, or damaged."""
    raw = bytearray(b"".join(encode(_message(random)) for _ in range(random.choice([1, 1, 2, 3]))))
    is_sound = random.random() < 0.2
    while not is_sound:
        if random.random() < 0.5:  # a length or a flag, mostly of the first
            at = random.choice([0, 4, 36, 84, 84 + random.randrange(40), random.randrange(len(raw))])
            raw[at : at + 4] = random.choice([*WORDS, struct.pack(">i", random.randint(-2, 300))])
        else:
            change_bytes(random, raw, WORDS)
        is_sound = random.random() < 0.7
    data, position, check_crc = bytes(raw), random.choice([0, 0, 0, 1, len(raw), len(raw) - 90]), random.random() < 0.5
    found = _decoder.decode(memoryview(data), position, check_crc)
    if found is not None:
        same(found, decode(data, position, check_crc=check_crc), data)
    all_found = _decoder.decode_all(data, check_crc, "b")
    if all_found is not None:
        same(all_found, decode_all(data, check_crc=check_crc, broker_name="b"), data)
    # Whether the messages are right is checked in tests/proxy/test_popped_messages.py, which needs protobuf.
    handles = dict.fromkeys(NUMBERS[:5], b"0 1 60000 0 0 broker-a 0 ")
    behind = _writer.write(data, 0, 1 << 20, b"orders", handles, random.choice(NUMBERS))[1]
    same(sum(each.size for each in decode_all(data[:behind])), behind, data)


def _message(random: Random) -> StoredMessage:
    addresses = [random.randbytes(8 if random.random() < 0.9 else 20) for _ in "bs"]
    message = StoredMessage(
        random.choice(["orders", "t", "é" * 20]),
        random.choice(BODIES),
        random.choice(["", "TAGS\x01a", "UNIQ_KEY\x01A\x02KEYS\x01a b\x02c\x01d\x02", "é中😀", "x" * 300]),
        *random.choices(NUMBERS[:5], k=3),
        random.choice(NUMBERS),
        addresses[0],
        random.choice(NUMBERS[:5]),
        *random.choices(NUMBERS, k=3),
        store_ms=random.choice(NUMBERS),
        store_address=addresses[1],
    )
    mark_addresses(message)
    return message


def answers(random: Random) -> None:
    """Answers as a client gets them: whole frames, parts of them, and others between."""
    data = bytearray(b"".join(random.choices(_recorded_answers(), k=random.choice([1, 2, 4]))))
    if random.random() < 0.8:
        change_bytes(random, data, [*CHANGES, *WORDS])
    if random.random() < 0.2:
        del data[random.randrange(len(data) + 1) :]
    raw = bytes(data)
    found: list[Response] = []
    position = _answers.deliver(raw, {}, found.append)
    frames = FrameSplitter().split(raw[:position])
    same(found, [decode_response(*frame) for frame in frames], raw)


def _recorded_answers() -> list[bytes]:
    if not _golden_answers:
        for path in sorted(FRAMES.iterdir()):
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                frames = [json.loads(line) for line in lines]
            _golden_answers.extend(bytes.fromhex(frame["hex"]) for frame in frames if frame["role"] == "response")
    return _golden_answers


def members(random: Random) -> None:
    """Members of batches, checked and written to log and queue."""
    drawn = Requests(random)
    some = [BatchMember(random.choice(NUMBERS[:5]), random.choice(BODIES), drawn.properties()[:9000]) for _ in range(3)]
    body = bytearray(encode_batch(some[: random.randint(1, 3)]))
    if random.random() < 0.7:
        change_bytes(random, body, WORDS)
    raw, more = bytes(body), random.choice(["CLUSTER\x01c", "", "x\x01y\x02"])
    found = batches.read_members(raw, more.encode())
    if found is None:
        return
    shape = Shape("t", 3, random.choice([0, 1, 2, 8, 0x30]), 5, STORE_ADDRESS, more, 2, 9)
    messages = list(shape.messages(decode_batch(raw)))
    log, queue = _room(sum(len(m.stored_body) + len(m.property_text.encode()) + 200 for m in messages), len(messages))
    given = {"queue_id": 3, "queue_offset": 7, "sys_flag": shape.sys_flag, "born_ms": 5, "born_address": STORE_ADDRESS}
    given |= {"now_ms": 6, "store_address": STORE_ADDRESS, "reconsume_times": 2, "prepared_offset": 9}
    assert found.append(log, 0, found.count, b"t", **given), raw.hex()
    assert found.enter(queue, 0, found.count, 1, 1000) == len(messages), raw.hex()
    at, entries = 1000, b""
    for number, message in enumerate(messages):
        message.log_offset, message.queue_offset = at, 7 + number
        message.store_ms, message.store_address = 6, STORE_ADDRESS
        mark_addresses(message)
        record = encode(message)
        entries += struct.pack(">qiq", at, len(record), tag_hash(message.properties.get("TAGS", "")))
        same(bytes(log.memory[at - 1000 : at - 1000 + len(record)]), record, raw)
        at += len(record)
    same(log.end, at, raw)
    same(bytes(queue.memory[: len(entries)]), entries, raw)


def columns(random: Random) -> None:
    """Columns made into members of a batch; those that do not fit together are refused."""
    rows = [
        BatchMember(random.choice(NUMBERS[:5]), random.choice(BODIES), "t" * random.choice([0, 1, 40]))
        for _ in range(random.choice([0, 1, 5]))
    ]
    flags = array("i", [row.flag for row in rows])
    bodies, texts = _column([row.body for row in rows]), _column([row.property_text.encode() for row in rows])
    first, last = sorted(random.choices(range(len(rows) + 1), k=2))
    raw = encode_batch(rows[first:last])
    same(batches.write_members(flags, bodies, texts, first, last), raw, raw)
    ends, content = changed = random.choice([bodies, texts])
    for _ in range(random.choice([1, 2])):
        at = random.randrange(len(ends))
        ends[at] = random.choice([*NUMBERS[:5], len(content), len(content) + 1, ends[at - 1]])
    if random.random() < 0.2:
        del random.choice([flags, ends])[random.randrange(2) :]
    first, last = random.choice([(first, last), (0, 1), (-1, 1), (1, 0), (0, len(rows) + 1), (len(rows), 1 << 40)])
    try:
        found = batches.write_members(flags, bodies, texts, first, last)
    except ValueError:
        return
    assert all(0 <= ends[number] <= ends[number + 1] <= len(content) for number in range(first, last)), changed
    parts = [[content[ends[n] : ends[n + 1]] for n in range(first, last)] for ends, content in (bodies, texts)]
    whole = [
        BatchMember(flags[n], body, text.decode()) for n, body, text in zip(range(first, last), *parts, strict=True)
    ]
    same(found, encode_batch(whole), found)


def _column(values: list[bytes]) -> tuple[array[int], bytes]:
    """Return where the first begins and where each ends, and what all are in."""
    ends = array("i", [2])
    for value in values:
        ends.append(ends[-1] + len(value))
    return array("i", ends.tobytes()), b"no" + b"".join(values)


def _room(log_bytes: int, entries: int) -> tuple[records.LogTail, records.QueueTail]:
    """Return ends of log and queue with just this room."""
    log, queue = records.LogTail(), records.QueueTail()
    log.memory, queue.memory = memoryview(bytearray(log_bytes)), memoryview(bytearray(20 * entries))
    log.base = log.end = 1000
    log.limit, log.max_record_bytes = 1000 + log_bytes, log_bytes
    queue.base = queue.max_offset = 7
    queue.end = queue.reserved = 7 + entries
    return log, queue


def sent_properties(random: Random) -> None:
    """Messages that a producer writes."""
    names = ["a", "é", "TAGS", " ", "", "k" * 30, "\x01", '"', "x\x02", "\ud800"]
    message = Message(
        "t",
        random.choice([b"", *BODIES]),
        tags=random.choice([None, *TAGS, "a||b", "x\x01"]),
        keys=tuple(random.choices(["k", "", "a b", '"é"', "\x02"], k=random.choice([0, 0, 1, 2]))),
        properties={
            random.choice(names): random.choice([*names, "v", "w" * 5000]) for _ in range(random.choice([0, 1, 3]))
        },
        wait_stored=random.random() < 0.9,
    )
    text = _properties.text(message, IDS.next, CONFIG.max_message_bytes, CONFIG.compress_from_bytes)
    if text is not None:
        same((message.body, 0, text), prepare(message, CONFIG, IDS), text)


def replies(random: Random) -> None:
    """Answers written by template."""
    name = random.choice(list(_writers))
    values = (random.getrandbits(63), *random.choices([*NUMBERS, 9, 10, random.getrandbits(40)], k=2))
    opaque = random.choice([0, 1, -1, random.getrandbits(31), -(1 << 31)])
    serialization = random.choice([JSON, BINARY])
    written = _writers[name].frame(values, opaque, 0, serialization)
    same(written, plainly(TEMPLATES[name], values, opaque, serialization=serialization), repr(values).encode())


def signed_requests(random: Random) -> None:
    """Requests signed by somebody, some of them damaged: what is let pass is signed by who may."""
    account = Account(random.choice([*SECRETS, "a stranger"]), random.choice(list(SECRETS.values())))
    signer = AccessKeySigner(account.access_key, account.secret_key, random.choice([None, None, "token"]))
    (drawn,) = FrameSplitter().split(Requests(random).any_hot())
    call = decode_request(*drawn)
    if not isinstance(call, Call) or call.header is None or "topic" not in _names(call.code):
        return
    asked = {"opaque": call.opaque, "flag": call.flag, "serialization": random.choice([JSON, JSON, BINARY])}
    frame = encode_request(call.header, call.body, signer=signer, **asked)
    if asked["serialization"] == JSON:
        same(_frame_signer(signer).sign(encode_request(call.header, call.body, **asked)), frame, frame)
    ((serialization, header, body),) = FrameSplitter().split(frame)
    address = random.choice([WHITE, ANY_ADDRESS, ANY_ADDRESS])
    judge, values = _acl(call.code).judge, READERS[call.code].values
    may = SECRETS.get(account.access_key) == account.secret_key and _may(account.access_key, call.header.topic, None)
    if values(serialization, header) is not None:  # others are not judged here
        same(judge(serialization, header, body, address), address == WHITE or may, frame)
    changed = [bytearray(header), bytearray(body)]
    change_bytes(random, changed[random.random() < 0.2], [*CHANGES, *WORDS])
    header, body = map(bytes, changed)
    if values(serialization, header) is not None and judge(serialization, header, body, ANY_ADDRESS):
        call = decode_request_with_fields(serialization, header, body)
        account = Account(key := call.fields["AccessKey"], SECRETS[key])
        assert is_signed_by(account, call.fields, body), (header.hex(), body.hex())
        assert _may(key, call.header.topic, None), header.hex()


@cache
def _names(code: int) -> list[str]:
    return [field.attribute for field in wire_layout(HOT[code])]


@cache
def _acl(code: int) -> fast_acl.FastAcl:
    names, in_force = _names(code), SimpleNamespace(white_list=True)
    return fast_acl.FastAcl(
        READERS[code],
        topic=names.index("topic"),
        group=names.index("consumer_group") if "consumer_group" in names else -1,
        in_force=lambda: in_force,
        secret_of=SECRETS.get,
        may=_may,
        trusts=lambda address: address == WHITE,
    )


def _may(access_key: str, topic: str, group: str | None) -> bool:
    return (len(access_key) + len(topic)) % 4 > 0


@cache
def _frame_signer(signer: AccessKeySigner) -> fast_acl.FrameSigner:
    added = {"AccessKey": signer.access_key}
    if signer.security_token is not None:
        added["SecurityToken"] = signer.security_token
    as_json = json.dumps({**added, "Signature": ""}, separators=(",", ":")).encode()[1:-2]
    return fast_acl.FrameSigner(signer.secret_key, list(added.items()), as_json)


def signatures(random: Random) -> None:
    """Signatures made by OpenSSL, or by `hmac` where Python does not show it."""
    fast_acl.use_openssl(random.random() < 0.9)
    secret = random.choice([*SECRETS.values(), "long" * 20]).encode()
    text = random.randbytes(random.choice([0, 40, 100, 1000]) + random.randrange(70))
    same(fast_acl.Key(secret).signature(text), base64.b64encode(hmac.digest(secret, text, "sha1")), text)
    fast_acl.use_openssl()


def words(random: Random) -> None:
    """Checksums and hashes."""
    data = random.randbytes(random.choice([0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 500]))
    same(records.crc32(data), zlib.crc32(data), data)
    text = (
        data.decode("utf-16-le", "surrogatepass")
        if len(data) % 2 == 0 and random.random() < 0.5
        else data.decode("latin-1")
    )
    same(decoding.java_hash(text), java_hash(text), data)
    same(records.java_hash(text), java_hash(text), data)


TARGETS: list[Callable[[Random], None]] = [headers] * 8 + [stored_records] * 5 + [answers] * 4
TARGETS += [members, columns, signed_requests, signed_requests, signatures, sent_properties, replies, words]


def fuzz(count: int, seed: int) -> Counter[str]:
    """Do so many rounds from a seed on; return how many each target had. Raises at the first difference."""
    assert not speedups.is_active, "PYROMQ_PURE=1 must be set: plain Python is what is compared with"
    done: Counter[str] = Counter()
    told = time.monotonic()
    for piece in range(seed, seed + -(-count // PIECE)):
        random = Random(piece)
        for target in random.choices(TARGETS, k=min(PIECE, count - done.total())):
            try:
                target(random)
            except MQError as error:
                raise AssertionError(
                    f"seed {piece}, {target.__name__}: only the plain path refuses it: {error}"
                ) from error
            except BaseException as error:
                error.add_note(f"in {target.__name__}, again with: python -m tests.speedups.fuzz 1000 --seed {piece}")
                raise
            done[target.__name__] += 1
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"{done.total()} of {count}", flush=True)
    return done


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("count", type=int, nargs="?", default=100_000)
    options.add_argument("--seed", type=int, default=seed_of_the_day() * 100_000)
    chosen = options.parse_args()
    started = time.monotonic()
    done = fuzz(chosen.count, chosen.seed)
    print(f"{done.total()} rounds, no difference, {time.monotonic() - started:.0f} s: {dict(done)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
