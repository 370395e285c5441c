"""Requests signed by the genuine client (4.9.7, AclClientRPCHook): we sign the same fields and bodies alike.

`signed/java-4.9.7.jsonl` holds one frame a line: `request` (what it asks, `-token` with a security token),
`serializer`, `hex` (the bytes).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyromq import speedups
from pyromq.remoting.command import JSON, Call, FrameSplitter, decode_request_with_fields, frame_words
from pyromq.remoting.signer import SIGNATURE, AccessKeySigner

SIGNED = [json.loads(line) for line in (Path(__file__).parent / "signed" / "java-4.9.7.jsonl").read_text().splitlines()]
ACCESS_KEY, SECRET_KEY, TOKEN = "orders-app", "a secret of Zürich", "tok%en"


@pytest.mark.parametrize("signed", SIGNED, ids=lambda each: f"{each['request']}-{each['serializer']}")
def test_we_sign_as_the_genuine_client_does(signed: dict[str, Any]) -> None:
    (frame,) = FrameSplitter().split(bytes.fromhex(signed["hex"]))
    call = decode_request_with_fields(*frame)
    assert isinstance(call, Call)
    token = TOKEN if signed["request"].endswith("-token") else None
    added = {"AccessKey", "Signature", "SecurityToken"}
    fields = {name: value for name, value in call.fields.items() if name not in added}
    ours = AccessKeySigner(ACCESS_KEY, SECRET_KEY, token).sign(fields, call.body)
    assert ours == {name: call.fields[name] for name in added & call.fields.keys()}
    assert len(ours[SIGNATURE]) == 28


@pytest.mark.skipif(not speedups.is_active, reason=speedups.reason)
@pytest.mark.parametrize("signed", SIGNED, ids=lambda each: f"{each['request']}-{each['serializer']}")
def test_compiled_parts_sign_as_the_genuine_client_does(signed: dict[str, Any]) -> None:
    (frame,) = FrameSplitter().split(bytes.fromhex(signed["hex"]))
    call = decode_request_with_fields(*frame)
    assert isinstance(call, Call)
    added = {"AccessKey", "Signature", "SecurityToken"}
    fields = {name: value for name, value in call.fields.items() if name not in added}
    header = msgspec.json.encode({"code": call.code, "extFields": fields, "flag": 0, "opaque": 1})
    signer = AccessKeySigner(ACCESS_KEY, SECRET_KEY, TOKEN if signed["request"].endswith("-token") else None)
    assert signer.compiled is not None
    ours = signer.compiled.sign(frame_words(JSON, len(header), len(call.body)) + header + call.body)
    assert ours is not None
    (split,) = FrameSplitter().split(ours)
    assert decode_request_with_fields(*split).fields == call.fields
