"""Signatures of the compiled parts are those of the standard library, with the processor's instructions and without."""

from __future__ import annotations

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

permits = pytest.importorskip("pyromq.speedups.fast_acl", reason="the compiled parts are not built")


PROCESSOR, AVX2, AVX512 = 1, 2, 4  # what SHA-1 is made by
TOGETHER = 16


@pytest.fixture(params=[PROCESSOR | AVX512, PROCESSOR, AVX512, AVX2, 0], scope="module")
def form(request):
    if permits.sha1_forms(request.param) != request.param:
        pytest.skip("this processor has no such instructions")
    yield
    permits.sha1_forms(PROCESSOR | AVX2 | AVX512)


def of_the_library(secret, content):
    return base64.b64encode(hmac.digest(secret, content, "sha1"))


def compare(secrets, contents):
    expected = [of_the_library(secret, content) for secret, content in zip(secrets, contents, strict=True)]
    assert permits.signatures(secrets, contents) == expected


def test_every_size_around_the_ends_of_blocks(form):
    content = bytes(range(256)) * 2
    for size in range(400):
        compare([b"secret"], [content[:size]])
        contents = [content[number : number + size] for number in range(TOGETHER)]
        compare([b"secret", b"another"] * (TOGETHER // 2), contents)


@pytest.mark.parametrize("size", [1, 7, 19, 20, 63, 64, 65, 128, 1000])
def test_secrets_of_any_size(form, size):
    secret = bytes(range(1, 251)) * 5
    compare([secret[:size]], [b"ab"])
    compare([secret[: size + number] for number in range(TOGETHER)], [b"ab"] * TOGETHER)


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=100), st.binary(max_size=5000)), min_size=1, max_size=TOGETHER)
)
def test_anything(form, texts):
    compare([secret for secret, _ in texts], [content for _, content in texts])


@given(
    sizes=st.lists(st.integers(0, 130), min_size=1, max_size=TOGETHER),
    base=st.integers(0, 1000),
)
def test_texts_of_nearly_one_size(form, sizes, base):
    """As those of a burst are, which are made side by side."""
    contents = [bytes([number]) * (base + size) for number, size in enumerate(sizes)]
    compare([b"secret %d" % number for number in range(len(sizes))], contents)


def test_none_at_all(form):
    assert permits.signatures([], []) == []
