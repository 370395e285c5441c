"""Signatures of requests: over what is on the wire, in both serializations, and nobody sees the secret."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq import speedups
from pyromq.clock import SystemClock
from pyromq.errors import UsageError
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import (
    BINARY,
    JSON,
    Call,
    FrameSplitter,
    decode_request_with_fields,
    encode_request,
    frame_words,
)
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.header import Filled, HeaderTemplate, json_text
from pyromq.remoting.headers import Heartbeat, MaxOffset, QueryMessage, SendMessageV2
from pyromq.remoting.remoting_session import RemotingSession
from pyromq.remoting.signer import AccessKeySigner, signature, signed_content

SIGNER = AccessKeySigner("orders-app", "secret-of-orders")
SEND = {
    "producer_group": "p",
    "default_topic": "TBW102",
    "default_topic_queue_count": 4,
    "sys_flag": 0,
    "born_ms": 1,
    "flag": 0,
}
TEMPLATE = HeaderTemplate(MaxOffset, ("queue_id",), topic="Orders ä")


def received(frame: bytes) -> Call:
    (split,) = FrameSplitter().split(frame)
    call = decode_request_with_fields(*split)
    assert isinstance(call, Call)
    return call


def is_signed(call: Call) -> bool:
    return call.fields["Signature"] == signature("secret-of-orders", signed_content(call.fields, call.body))


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["JSON", "binary"])
@pytest.mark.parametrize(
    "header", [Heartbeat(), MaxOffset("Orders ä", 3), Filled(TEMPLATE, (3,))], ids=["empty", "header", "template"]
)
def test_a_request_carries_the_account_and_a_signature_of_what_arrives(header, serialization):
    call = received(encode_request(header, b"body", opaque=1, flag=ONE_WAY, serialization=serialization, signer=SIGNER))
    assert call.fields["AccessKey"] == "orders-app"
    assert is_signed(call)
    assert "SecurityToken" not in call.fields


def test_the_security_token_is_sent_and_signed():
    call = received(encode_request(Heartbeat(), b"", opaque=1, flag=0, signer=AccessKeySigner("a", "s", "token")))
    assert call.fields["SecurityToken"] == "token"
    assert call.fields["Signature"] == signature("s", b"atoken")


def test_a_field_without_text_counts_as_absent_in_binary_headers():
    header = MaxOffset("", 3)
    call = received(encode_request(header, b"", opaque=1, flag=0, serialization=BINARY, signer=SIGNER))
    assert "topic" not in call.fields
    assert is_signed(call)


def test_the_mark_of_queries_by_unique_key_is_sent_but_not_signed():
    query = QueryMessage("Orders", "k-1", 32, 0, 9, by_unique_key=True)
    call = received(encode_request(query, b"", opaque=1, flag=0, signer=SIGNER))
    assert call.fields["_UNIQUE_KEY_QUERY"] == "true"
    assert call.fields["Signature"] == SIGNER.sign({**call.fields, "_UNIQUE_KEY_QUERY": "false"}, b"")["Signature"]


def test_every_way_of_asking_over_a_connection_is_signed():
    session = RemotingSession(
        Dispatcher(),
        SystemClock(),
        address=("127.0.0.1", 1),
        wake=lambda: None,
        run_soon=lambda *_: None,
        signer=SIGNER,
    )
    session.call(Heartbeat(), b"{}", timeout=1, answered=lambda _: None)
    session.call(Filled(TEMPLATE, (3,)), timeout=1, answered=lambda _: None)
    session.notify(Filled(TEMPLATE, (4,)))
    calls = [received(bytes(frame)) for frame in session.take_output()]
    assert [is_signed(call) for call in calls] == [True] * 3


class AnotherSigner:
    def sign(self, fields, body):
        return {}


@pytest.mark.skipif(not speedups.is_active, reason=speedups.reason)
def test_who_writes_frames_of_its_own_signs_them_too():
    def fast_path(signer):
        nothing = {"wake": lambda: None, "run_soon": lambda *_: None}
        return RemotingSession(
            Dispatcher(), SystemClock(), address=("127.0.0.1", 1), signer=signer, **nothing
        ).for_fast_path()

    assert fast_path(None)[-1] is None
    assert fast_path(SIGNER)[-1] is SIGNER.compiled
    assert fast_path(AnotherSigner()) is None  # which knows no frames


def test_the_secret_is_not_shown():
    assert repr(AccessKeySigner("orders-app", "hidden", "hidden too")) == "AccessKeySigner(access_key='orders-app')"


def test_signers_of_equal_keys_are_equal():
    assert {SIGNER, AccessKeySigner("orders-app", "secret-of-orders")} == {SIGNER}
    assert AccessKeySigner("orders-app", "another") != SIGNER


@pytest.mark.parametrize(("access_key", "secret_key", "missing"), [("", "s", "access_key"), ("a", "", "secret_key")])
def test_half_an_account_is_refused(access_key, secret_key, missing):
    with pytest.raises(UsageError, match=f"^{missing} is empty"):
        AccessKeySigner(access_key, secret_key)


@given(
    topic=st.text(st.characters(codec="utf-8"), max_size=20),
    properties=st.text(st.characters(codec="utf-8"), max_size=60),
    body=st.binary(max_size=300),
    token=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
    flag=st.sampled_from([0, ONE_WAY]),
)
def test_a_template_is_signed_as_a_header_is(topic, properties, body, token, flag):
    """With compiled parts, where there are any."""
    signer = AccessKeySigner('a "key" é', "secret-of-orders", token)
    template = HeaderTemplate(
        SendMessageV2, ("queue_id", "properties"), formats={"properties": "%b"}, **SEND | {"topic": topic}
    )
    filled = Filled(template, (3, json_text(properties)))
    call = received(encode_request(filled, body, opaque=5, flag=flag, signer=signer))
    plain = received(encode_request(filled.header, body, opaque=5, flag=flag, signer=signer))
    assert (call.fields, call.body, call.opaque, call.flag) == (plain.fields, plain.body, plain.opaque, plain.flag)
    assert is_signed(call)


@pytest.mark.skipif(not speedups.is_active, reason=speedups.reason)
@given(
    fields=st.lists(
        st.dictionaries(
            st.text(st.sampled_from("abAS_ä"), max_size=3) | st.sampled_from(["topic", "_UNIQUE_KEY_QUERY", "x" * 300]),
            st.text(st.characters(codec="utf-8"), max_size=20),
            max_size=40,
        ),
        min_size=1,
        max_size=4,
    ),
    body=st.binary(max_size=300),
    token=st.none() | st.just("T"),
)
def test_frames_of_any_fields_are_signed_as_their_fields_are(fields, body, token):
    """One signer after the other: it remembers the order of the names before."""
    signer = AccessKeySigner("orders-app", "secret-of-orders", token)
    for each in fields:
        header = msgspec.json.encode({"code": 310, "extFields": each, "flag": 0, "opaque": 1})
        frame = frame_words(JSON, len(header), len(body)) + header + body
        signed = signer.compiled.sign(frame)
        if signed is None:
            assert len(each) >= 29
            continue
        [(_, signed_header, signed_body)] = FrameSplitter().split(signed)
        assert msgspec.json.decode(signed_header)["extFields"] == {**each, **signer.sign(each, body)}
        assert signed_header.startswith(header[: -len(b'},"flag":0,"opaque":1}')])
        assert signed_header.endswith(b'},"flag":0,"opaque":1}')
        assert signed_body == body


def test_a_template_without_fields_is_signed():
    filled = Filled(HeaderTemplate(Heartbeat, ()), ())
    assert is_signed(received(encode_request(filled, b"{}", opaque=5, flag=0, signer=SIGNER)))


def test_a_template_with_a_mark_that_is_not_signed():
    constants = {"topic": "t", "key": "k", "max_count": 1, "begin_ms": 0, "by_unique_key": True}
    filled = Filled(HeaderTemplate(QueryMessage, ("end_ms",), **constants), (9,))
    assert is_signed(received(encode_request(filled, b"", opaque=5, flag=0, signer=SIGNER)))
