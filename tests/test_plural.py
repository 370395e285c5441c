import pytest

from pyromq.plural import counted


@pytest.mark.parametrize(
    ("count", "forms", "text"),
    [
        (1, ("message",), "1 message"),
        (0, ("message",), "0 messages"),
        (2, ("batch", "batches"), "2 batches"),
        (1, ("message was", "messages were"), "1 message was"),
    ],
)
def test_one_is_singular_and_any_other_number_plural(count, forms, text):
    assert counted(count, *forms) == text
