"""The page on the command line: its numbers are counted, and its words and letters are those of the program."""

import re

from scripts.documentation.keys import PAGE, counted, rows
from tests.cli.test_command_tree import LETTERS

from pyromq.cli.aliases import LINES, MQADMIN


def test_keys_are_counted_and_pyromq_needs_no_more_than_the_second_best_of_the_others():
    text = PAGE.read_text()
    assert counted(text) == text, "run python -m scripts.documentation.keys"
    found = rows(text)
    assert len(found) == 10
    for own, *others in found:
        assert own <= sorted(others)[1], (own, others)


def test_letters_and_words_are_those_of_the_program():
    text = PAGE.read_text()
    shown = re.findall(r"`(-[a-zA-Z])` \| ([^|]+)", text)
    assert {letter: set(re.findall(r"`(--[a-z]+)`", names)) for letter, names in shown} == LETTERS
    words = {word for word in LINES if " " not in word} - {"info", "status"}
    assert {word for word in words if f"`{word}`" in text} == words


def test_all_commands_of_mqadmin_have_the_counterpart_of_the_page_on_administration():
    table = (PAGE.parents[1] / "administration.md").read_text().partition("| `mqadmin` |")[2].partition("\n\n")[0]
    for names, counterparts in re.findall(r"^\| ([a-zA-Z, ]+) \| ([^|]+) \|", table, re.MULTILINE):
        for name in names.split(", "):
            line = MQADMIN[name]
            assert (
                "[accounts]" in counterparts or f"`{line}" in counterparts or f"`{line.split()[-1]}`" in counterparts
            ), name
