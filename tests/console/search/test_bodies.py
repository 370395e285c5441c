"""Bodies as text: every script, its spaces and its emoji; nothing that is read in another order than stored."""

import pytest

from pyromq.console.search.bodies import BodyExcerpt, BodyView
from pyromq.message import StoredMessage


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("订单已付款\u3000こんにちは", "订单已付款 こんにちは"),
        ("👩\u200d👩\u200d👧 🏴\U000e0067\U000e0062\U000e007f", None),
        ("שלום\u200f مرحبا\u200c", None),
        ("12\u00a0000 €\r\n\tsoft\u00adhyphen", "12 000 € soft\u00adhyphen"),
        ("\ufeff{}", None),
    ],
)
def test_text_of_any_script_is_text(text, line):
    message = StoredMessage("orders", text.encode())
    assert BodyExcerpt(message).excerpt == (line or text)
    assert (BodyView(message).kind, BodyView(message).shown) == ("text", text)


@pytest.mark.parametrize("body", ["a\u202eb", "\u2066a", "a\x1b[2J", "\x00", "\u2028"])
def test_what_cannot_be_shown_as_it_is_stored_is_hex(body):
    message = StoredMessage("orders", body.encode())
    assert BodyExcerpt(message).excerpt == body.encode().hex(" ")
    assert BodyView(message).kind == "binary"
