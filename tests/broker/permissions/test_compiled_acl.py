"""Signatures of the compiled parts are those of the standard library, with OpenSSL's functions and without."""

from __future__ import annotations

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

fast_acl = pytest.importorskip("pyromq.speedups.fast_acl", reason="the compiled parts are not built")


@pytest.fixture(params=[True, False], ids=["OpenSSL", "hmac"], scope="module")
def form(request):
    if fast_acl.use_openssl(request.param) != request.param:
        pytest.skip("this Python does not show its OpenSSL")
    yield
    fast_acl.use_openssl()


def compare(secret, content):
    expected = base64.b64encode(hmac.digest(secret, content, "sha1"))
    assert fast_acl.Key(secret).signature(content) == expected


def test_every_size_around_the_ends_of_blocks(form):
    content = bytes(range(256)) * 2
    for size in range(400):
        compare(b"secret", content[:size])


@pytest.mark.parametrize("size", [1, 7, 19, 20, 63, 64, 65, 128, 1000])
def test_secrets_of_any_size(form, size):
    compare((bytes(range(1, 251)) * 5)[:size], b"ab")


@given(secret=st.binary(min_size=1, max_size=100), content=st.binary(max_size=5000))
def test_anything(form, secret, content):
    compare(secret, content)


def test_a_key_signs_again_and_again(form):
    key = fast_acl.Key(b"secret")
    assert key.signature(b"one") == key.signature(b"one") != key.signature(b"two")


def test_keys_outlive_a_change_of_the_functions(form):
    key = fast_acl.Key(b"secret")
    expected = key.signature(b"x")
    try:
        fast_acl.use_openssl(False)
        assert key.signature(b"x") == expected
    finally:
        fast_acl.use_openssl()
