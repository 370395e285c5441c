"""The handle by which a message that waits is cancelled."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import RecallRefused
from pyromq.names import check_topic
from pyromq.remoting.recall_handle import RecallHandle, decode_handle

NAMES = st.from_regex(r"[%|a-zA-Z0-9_-]{1,20}", fullmatch=True)
KEYS = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1, max_size=40)


@given(NAMES, NAMES, st.integers(0, 1 << 45), KEYS)
def test_a_handle_is_url_safe_base64_of_five_words(topic, broker_name, due_ms, unique_key):
    check_topic(topic)
    handle = RecallHandle(topic, broker_name, due_ms, unique_key)
    assert handle.encode() == urlsafe_b64encode(f"v1 {topic} {broker_name} {due_ms} {unique_key}".encode()).decode()
    assert decode_handle(handle.encode()) == handle


@pytest.mark.parametrize(
    "words", ["", "v1", "v2 t b 5 k", "v1 t b x k", "v1 t b -5 k", "v1 t b ５ k", "v1 t b 5 ", "v1  b 5 k", "v1 t b 5"]
)
def test_other_texts_are_refused(words):
    with pytest.raises(RecallRefused, match="recall handle is invalid"):
        decode_handle(urlsafe_b64encode(words.encode()).decode())


@pytest.mark.parametrize("text", ["%%%", "djE", "\ud800", "ü"])
def test_what_is_no_base64_is_refused(text):
    with pytest.raises(RecallRefused, match="recall handle is invalid"):
        decode_handle(text)
