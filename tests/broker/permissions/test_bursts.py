"""Bursts of requests signed by several accounts, rightly or not: each is judged for itself."""

import asyncio
import random

import pytest

from pyromq.remoting.command import BINARY, JSON, FrameSplitter, Response, decode_response, encode_request
from pyromq.remoting.headers import MaxOffset

from ..headers import pull_header, send_header
from .asking import signer

BURST = 60
TAGGED = "KEYS\x01k\x02TAGS\x01a\x02WAIT\x01true\x02"

# What is asked, by whom, and whether it passes.
PASSING = {
    "plain": (send_header(TAGGED), b"x" * 128, "writer-1"),
    "binary": (send_header(TAGGED), b"x" * 128, "writer-1"),
    "administrator": (send_header(TAGGED), b"x" * 100, "admin-1"),
    "other order of names": (send_header(), b"short", "writer-1"),
    "large": (send_header(TAGGED), b"y" * 20_000, "writer-1"),
    "delayed, so judged the plain way": (send_header("DELAY\x013\x02"), b"later", "writer-1"),
}
REFUSED = {
    "another's signature": (send_header(TAGGED), b"x" * 128, "writer-1"),
    "body changed": (send_header(TAGGED), b"x" * 128, "writer-1"),
    "no right": (send_header(TAGGED), b"x" * 128, "reader-1"),
    "unknown": (send_header(TAGGED), b"x" * 128, "nobody-1"),
    "unsigned": (send_header(TAGGED), b"x" * 128, None),
}


def frame_of(kind, opaque):
    header, body, name = (PASSING | REFUSED)[kind]
    sign = None if name is None else signer(name, "wrong-secret" if kind == "another's signature" else None)
    serialization = BINARY if kind == "binary" else JSON
    frame = encode_request(header, body, opaque=opaque, flag=0, serialization=serialization, signer=sign)
    return frame[:-1] + b"y" if kind == "body changed" else frame


async def codes_of(broker, frames):
    """Send all with one write; return code by opaque, in the order of the answers."""
    host, port = broker.address.split(":")
    reader, writer = await asyncio.open_connection(host, port)
    splitter, codes = FrameSplitter(), {}
    writer.write(b"".join(frames))
    try:
        while len(codes) < len(frames):
            for frame in splitter.split(await reader.read(1 << 16)):
                answer = decode_response(*frame)
                assert isinstance(answer, Response)
                codes[answer.opaque] = answer.code
    finally:
        writer.close()
    return codes


@pytest.mark.parametrize("seed", range(6))
async def test_each_request_of_a_burst_is_judged_for_itself(guarded, account, seed):
    await codes_of(guarded, [frame_of("plain", 0)])  # makes the topic
    draw = random.Random(seed)
    usual = ["plain"] * (0, 10, 100)[seed % 3]
    kinds = draw.choices([*usual, *PASSING, *REFUSED], k=BURST)
    codes = await codes_of(guarded, [frame_of(kind, opaque) for opaque, kind in enumerate(kinds)])
    assert codes == {opaque: int(kind in REFUSED) for opaque, kind in enumerate(kinds)}
    assert list(codes) == sorted(codes)
    admin = await account("admin-1")
    stored = (await admin.channel.call(MaxOffset("orders", 0), timeout=30)).check().fields["offset"]
    at_once = [kind for kind in kinds if kind in PASSING and not kind.startswith("delayed")]
    assert int(stored) == 1 + len(at_once)


async def test_a_signature_that_is_wrong_at_one_place_is_refused(guarded, account):
    await (await account("admin-1")).create_topic("orders", queues=1)
    frames = [frame_of("plain", opaque) for opaque in range(30)]
    for place, frame in enumerate(frames[2:]):
        at = frame.index(b'"Signature":"') + len(b'"Signature":"') + place
        frames[2 + place] = frame[:at] + (b"B" if frame[at : at + 1] == b"A" else b"A") + frame[at + 1 :]
    codes = await codes_of(guarded, frames)
    assert [codes[opaque] for opaque in range(30)] == [0, 0, *[1] * 28]


async def test_rights_on_a_topic_and_a_group_are_none_on_others_of_equal_letters(guarded, account):
    admin, reader = await account("admin-1"), await account("reader-1")
    for topic in ("orders", "order"):
        await admin.create_topic(topic, queues=1)
        for _ in range(3):
            await admin.send(topic)
    for _ in range(3):
        await reader.ask(pull_header(topic="orders", consumer_group="c"))
    for _ in range(2):
        await admin.ask(pull_header(topic="order", consumer_group="sc"))  # which the compiled parts then know
    refused = await reader.ask(pull_header(topic="order", consumer_group="sc"), code=1)
    assert refused.remark.startswith("AclException: ")
