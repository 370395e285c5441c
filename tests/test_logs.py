import logging

import pytest

from pyromq.errors import BrokerError
from pyromq.logs import logger_of


@pytest.fixture
def written(caplog):
    """Log by a logger of ours, and return what a handler of the usual form would write."""
    caplog.set_level(logging.DEBUG, logger="pyromq.testing_logs")

    def write(text, *arguments, **options):
        caplog.clear()
        logger_of("pyromq.testing_logs").warning(text, *arguments, **options)
        return logging.Formatter("%(levelname)s %(message)s").format(caplog.records[0])

    return write


def test_a_strangers_text_cannot_begin_a_line(written):
    assert written("topic %s of %s", "a\nERROR b", "10.0.0.7:1") == r"WARNING topic a\nERROR b of 10.0.0.7:1"


@pytest.mark.parametrize("argument", ["x" * 1_000_000, ["x" * 1_000_000], BrokerError("x" * 1_000_000)])
def test_a_strangers_text_is_cut_off(written, argument):
    line = written("%s", argument)
    assert len(line) < 1100
    assert line.endswith("more characters)")


def test_what_is_short_and_printable_stays_the_object_it_was(written, caplog):
    error = BrokerError("no")
    written("%d %s %.1f", 3, error, 0.5)
    assert caplog.records[0].args == (3, error, 0.5)


def test_a_traceback_cannot_begin_a_line_either(written):
    try:
        raise ValueError("no\nERROR forged \x1b[2J" + "x" * 1_000_000)
    except ValueError as error:
        lines = written("failed", exc_info=error).split("\n")
    assert lines[0] == "WARNING failed"
    assert all(line.startswith("  ") and line.isprintable() for line in lines[1:])
    assert r"ERROR forged \x1b[2J" in lines[-1]
    assert len(lines[-1]) < 1100
