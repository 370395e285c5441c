"""Random and damaged requests, signed by whoever: what passes is what a model of the rules lets pass.

The compiled way may leave a request to the plain one; what it lets pass must pass, and what clients write must not be
left. `make soak` plays a hundred thousand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import IPv4Address
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyromq import speedups
from pyromq.broker.compiled_handlers import fast_acl_of
from pyromq.broker.permissions.rules import PermissionGuard, Rules
from pyromq.clock import SystemClock
from pyromq.errors import AccessDenied, ProtocolError
from pyromq.permissions.acl_files import parse_acl_file
from pyromq.permissions.permissions import Permissions
from pyromq.remoting import headers
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, Subscription, encode_body
from pyromq.remoting.command import BINARY, JSON, FrameSplitter, encode_request, frame_words
from pyromq.remoting.header import request_headers
from pyromq.remoting.rejection_log import RejectionLog

from ..headers import PLAIN, batch_header, send_header
from .asking import received, secret_of, signer

TOPICS = ["open", "mine", "theirs", "closed", "%RETRY%mine", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX"]
GROUPS = ["mine", "theirs"]
ADDRESSES = ["10.1.1.1", "10.2.2.2", "10.3.3.3"]  # the second is on the white list, the third is `place-12`'s


@dataclass(frozen=True)
class Modelled:
    """An account as the model sees it: what it may do, as (resource, right) pairs."""

    name: str
    may: frozenset[tuple[str, str]]
    admin: bool = False
    address: str | None = None


# Rights as a person would write them down: the resource, and what may be done.
def pairs(text: str) -> frozenset[tuple[str, str]]:
    return frozenset((word.split(":")[0], right) for word in text.split() for right in word.split(":")[1].split(","))


ALL = " ".join(f"{topic}:PUB,SUB" for topic in TOPICS) + " " + " ".join(f"%RETRY%{group}:SUB" for group in GROUPS)
MODEL = {
    account.name: account
    for account in (
        Modelled("plain-12", pairs("mine:PUB,SUB %RETRY%mine:SUB")),
        Modelled("deflt-12", pairs("open:PUB mine:PUB theirs:PUB %RETRY%mine:SUB %RETRY%theirs:SUB")),
        Modelled("admin-12", pairs(ALL), admin=True),
        Modelled("bound-12", pairs("mine:SUB"), admin=True),
        Modelled("place-12", frozenset(), address="10.3.3.3"),
    )
}
FILE = f"""
globalWhiteRemoteAddresses: [10.2.2.0-9]
accounts:
- {{accessKey: plain-12, secretKey: {secret_of("plain-12")}, topicPerms: [mine=PUB|SUB], groupPerms: [mine=SUB]}}
- {{accessKey: deflt-12, secretKey: {secret_of("deflt-12")}, defaultTopicPerm: PUB, defaultGroupPerm: SUB,
    topicPerms: [closed=DENY]}}
- {{accessKey: admin-12, secretKey: {secret_of("admin-12")}, admin: true}}
- {{accessKey: bound-12, secretKey: {secret_of("bound-12")}, admin: true, topicPerms: [mine=SUB]}}
- {{accessKey: place-12, secretKey: {secret_of("place-12")}, whiteRemoteAddress: 10.3.3.3}}
"""


def published(topic):
    if topic == "RMQ_SYS_TRACE_TOPIC":
        return []
    return [(topic, "SUB" if topic.startswith("%RETRY%") else "PUB")]


def pull(topic, group, declared=headers.PullMessage):
    return declared(
        consumer_group=group, topic=topic, queue_id=0, queue_offset=0, max_count=32, sys_flag=0, commit_offset=0,
        suspend_ms=0, subscription_version=0, subscription="*",
    )  # fmt: skip


def read(topic, group):
    return [(topic, "SUB"), (f"%RETRY%{group}", "SUB")]


def beat(topic, group):
    consumer = ConsumerEntry(group=group, subscriptions=[Subscription(topic=topic)])
    return encode_body(HeartbeatBody(client_id="c", consumers=[consumer]))


# By name: the header and the body for a topic and a group, and the rights that are needed; "admin": an administrator.
REQUESTS = {
    "send": lambda t, g: (send_header("TAGS\x01a\x02WAIT\x01true\x02", topic=t), b"body", published(t)),
    "send 10": lambda t, g: (headers.SendMessage(**PLAIN | {"topic": t}), b"body", published(t)),
    "send 320": lambda t, g: (batch_header(topic=t), b"body", published(t)),
    "pull": lambda t, g: (pull(t, g), b"", read(t, g)),
    "pull 361": lambda t, g: (pull(t, g, headers.LitePullMessage), b"", read(t, g)),
    "query": lambda t, g: (headers.QueryMessage(t, "k", 1, 0, 1), b"", [(t, "SUB")]),
    "offset": lambda t, g: (headers.UpdateConsumerOffset(g, t, 0, 1), b"", read(t, g)),
    "beat": lambda t, g: (headers.Heartbeat(), beat(t, g), read(t, g)),
    "list": lambda t, g: (headers.ConsumerList(g), b"", [(f"%RETRY%{g}", "SUB")]),
    "bounds": lambda t, g: (headers.MaxOffset(t, 0), b"", []),
    "delete": lambda t, g: (headers.DeleteTopic(t), b"", "admin"),
    "reset": lambda t, g: (headers.ResetOffset(t, g, 0), b"", "admin"),
    "account": lambda t, g: (headers.SaveAccount("new-1234", "1234567", admin=True), b"", "admin"),
}
HOT = {"send": 310, "send 10": 10, "pull": 11, "pull 361": 361}

# What is done to a frame behind the signature: each gives fields, body, and whether the signature still holds.
DAMAGES = [
    *["none"] * 3, "value", "more", "less", "body", "signature", "case", "no signature", "other account", "order",
]  # fmt: skip


def expected(by, secret_right, holds, address, needed):
    """The rules once more."""
    if address == "10.2.2.2":
        return True
    account = MODEL.get(by)
    if account is None:
        return False
    if account.address == address:
        return True
    if not (secret_right and holds):
        return False
    if needed == "admin":
        return account.admin
    if account.name == "bound-12":  # an administrator with rights has those only
        return all(need in account.may for need in needed)
    return account.admin or all(need in account.may for need in needed)


class Judges:
    """The plain guard, and the compiled ones where there are any."""

    def __init__(self, folder):
        permissions = Permissions()
        permissions.take((parse_acl_file(folder / "plain_acl.yml", FILE.encode()),))
        self.guard = PermissionGuard(permissions, Rules(lambda _: None, "replies"), RejectionLog(SystemClock()))
        self.compiled = {code: _compiled(permissions, code) for code in HOT.values()} if speedups.is_active else {}


def _compiled(permissions, code):
    state = SimpleNamespace(permissions=permissions, config=SimpleNamespace(permissions=True))
    return fast_acl_of(state, request_headers()[code])


@pytest.fixture(scope="module")
def judges(tmp_path_factory):
    return Judges(tmp_path_factory.mktemp("acl"))


def damaged(how, fields, body, draw):
    """Return fields and body, damaged; and whether the signature still holds."""
    fields = dict(fields)
    names = sorted(fields.keys() - {"Signature"})
    if how == "value":
        name = draw(st.sampled_from(names))
        value = draw(st.sampled_from(["", "x", "1", "true", fields[name] + "0", fields[name][1:]]))
        holds = value == fields[name]
        return fields | {name: value}, body, holds
    if how == "more":
        return fields | {draw(st.sampled_from(["more", "AAA", "zzz"])): "x"}, body, False
    if how == "less":
        name = draw(st.sampled_from(names))
        return {each: fields[each] for each in fields if each != name}, body, False
    if how == "body":
        return fields, body + b"x", False
    if how == "signature":
        at = draw(st.integers(0, 26))
        signature = fields["Signature"]
        letter = "A" if signature[at] != "A" else "B"
        return fields | {"Signature": signature[:at] + letter + signature[at + 1 :]}, body, False
    if how == "case":
        return fields | {"Signature": fields["Signature"].swapcase()}, body, False
    if how == "no signature":
        return {each: fields[each] for each in fields if each != "Signature"}, body, False
    if how == "other account":
        other = draw(st.sampled_from(sorted(MODEL)))
        return fields | {"AccessKey": other}, body, other == fields.get("AccessKey")
    if how == "order":
        return {each: fields[each] for each in draw(st.permutations(list(fields)))}, body, True
    return fields, body, True


def play(judges, data):
    draw = data.draw
    kind = draw(st.sampled_from(sorted(REQUESTS)))
    topic = draw(st.sampled_from(TOPICS))
    header, body, needed = REQUESTS[kind](topic, draw(st.sampled_from(GROUPS)))
    by = draw(st.sampled_from([*MODEL, "stranger-1", None]))
    secret_right = draw(st.integers(0, 4)) > 0
    address = draw(st.sampled_from([ADDRESSES[0], ADDRESSES[0], *ADDRESSES]))
    serialization = draw(st.sampled_from([JSON, JSON, BINARY]))
    how = draw(st.sampled_from(DAMAGES))
    frame = encode_request(
        header,
        body,
        opaque=draw(st.integers(0, 1 << 30)),
        flag=draw(st.sampled_from([0, 2])),
        serialization=serialization,
        signer=None if by is None else signer(by, None if secret_right else "another-secret"),
    )
    (split,) = FrameSplitter().split(frame)
    call = received(frame)
    holds = by is not None
    if by is not None and how != "none" and serialization == JSON:
        fields, body, holds = damaged(how, call.fields, call.body, draw)
        by = fields.get("AccessKey")
        raw = json.loads(split[1]) | {"extFields": fields}
        ascii_only = draw(st.booleans())
        raw_header = json.dumps(
            raw, separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])), ensure_ascii=ascii_only
        )
        frame = frame_words(JSON, len(raw_header.encode()), len(body)) + raw_header.encode() + body
        (split,) = FrameSplitter().split(frame)
        call = received(frame)
        if call.header is None:  # refused before anybody is asked
            return
        if how in ("value", "less", "more") and not holds and by in MODEL and MODEL[by].address == address:
            return  # what it asks for has changed; from there it passes all the same
    call.peer = type(call.peer)(f"{address}:1")
    should = expected(by, secret_right, holds, address, needed)
    error = judges.guard.judge(call)
    assert error is None or isinstance(error, AccessDenied | ProtocolError)
    assert (error is None) == should, (kind, by, how, address, str(error))
    if judges.compiled and (code := HOT.get(kind)):
        passed = judges.compiled[code].judge(
            serialization, bytes(split[1]), bytes(split[2]), IPv4Address(address).packed
        )
        assert passed <= should, (kind, by, how, address)
        is_plain = kind.startswith("send") and topic.startswith("%RETRY%")  # the compiled way does not answer these
        if how == "none" and not is_plain and not (by in MODEL and MODEL[by].address == address):
            assert passed == should, (kind, by, address)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_passes_is_what_the_rules_let_pass(judges, data):
    play(judges, data)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=100_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_passes_is_what_the_rules_let_pass_at_length(judges, data):
    play(judges, data)
