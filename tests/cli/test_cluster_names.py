"""Names of topics and groups: completed, and proposed where one is wrong."""

import pytest
from click.shell_completion import ShellComplete

from pyromq.cli.main import pyromq


def completed(*words):
    *arguments, incomplete = words
    shell = ShellComplete(pyromq, {}, "pyromq", "_PYROMQ_COMPLETE")
    return [item.value for item in shell.get_completions(arguments, incomplete)]


@pytest.fixture
def names(cli, served):
    """Topics and a group of the cluster that all tests share: made by whoever comes first."""
    for topic in ("flights-late", "flights-early"):
        cli("topic", "create", topic)
    cli("group", "create", "boarding")


def test_topics_and_groups_are_completed(names):
    assert completed("consume", "flights-") == ["flights-early", "flights-late"]
    assert completed("topic", "delete", "flights-l") == ["flights-late"]
    assert "boarding" in completed("group", "show", "")
    assert completed("consume", "flights-late", "--group", "boar") == ["boarding"]


def test_nothing_is_completed_without_a_cluster():
    assert completed("consume", "-n", "127.0.0.1:1", "fl") == []


def test_a_wrong_name_is_told_what_it_is_like(cli, names):
    outcome = cli("topic", "show", "flight-late")
    assert (outcome.code, "did you mean flights-late" in outcome.err) == (1, True), outcome.err
    assert "did you mean" not in cli("topic", "show", "nothing-like-it-at-all").err


def test_a_wrong_command_is_told_what_it_is_like(cli):
    assert "did you mean `pyromq send`?" in cli("sned", "orders", "x").err
