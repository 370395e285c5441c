"""Settings as text, in the format of Java's properties."""

from hypothesis import given
from hypothesis import strategies as st

from pyromq.remoting.properties import parse_properties, write_properties


def test_names_and_values_are_read_as_java_reads_them():
    text = "# note\n! note\nplain=1\n  spaced = a b \r\ncolon: x\nblank y\nempty=\n"
    text += "\npath=C\\:\\\\x\\u00e9\nlong=a,\\\n   b"
    assert parse_properties(text) == {
        "plain": "1",
        "spaced": "a b ",
        "colon": "x",
        "blank": "y",
        "empty": "",
        "path": "C:\\xé",
        "long": "a,b",
    }


def test_the_last_of_a_name_wins_and_names_may_be_escaped():
    assert parse_properties("a=1\na=2\nb\\=c=3") == {"a": "2", "b=c": "3"}


def test_written_settings_are_read_back():
    settings = {"brokerName": "broker-a", "messageDelayLevel": "1s 5s 1h", "namesrvAddr": "a:9876;b:9876"}
    assert parse_properties(write_properties(settings)) == settings


def test_escaped_pairs_of_surrogates_are_one_character_and_halves_are_none():
    assert parse_properties("a=\\ud83d\\ude00\nb=\\ud83dx") == {"a": "😀", "b": "\ufffdx"}


texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\\\n\r\t\f =:#!uné\x00\u2028"), max_size=30)


@given(st.dictionaries(texts, texts, max_size=4))
def test_whatever_is_written_is_read_back(settings):
    text = write_properties(settings)
    assert parse_properties(text) == settings
    assert text.isascii()
    assert text.count("\n") == len(settings)


@given(st.text(st.sampled_from("\\\n\r\t\f =:#!u0041x"), max_size=40))
def test_whatever_is_read_is_written_so_that_it_is_read_again(text):
    settings = parse_properties(text)
    assert parse_properties(write_properties(settings)) == settings


def test_many_lines_that_go_on_are_read_in_one_go():
    assert parse_properties("a=" + "x\\\n" * 200_000) == {"a": "x" * 200_000}
