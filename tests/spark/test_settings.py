"""Settings of jobs: what is understood, and what is said about mistakes. Without Spark."""

import pytest

from pyromq.errors import UsageError
from pyromq.spark.jobs.settings import JOBS, Archive, build, pairs

ARCHIVE = {"to": "/lake", "topics": "orders", "checkpoint": "/checkpoint"}


def test_settings_of_all_parts_are_given_side_by_side():
    settings = build(Archive, ARCHIVE | {"once": True, "namesrv": "a:1", "conf": ["x=1"]})
    assert (settings.to, settings.stream.topics, settings.stream.once) == ("/lake", "orders", True)
    assert (settings.session.namesrv, settings.session.conf) == ("a:1", ("x=1",))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"to": "/lake", "topics": "orders"}, "setting checkpoint is missing"),
        (ARCHIVE | {"topic": "x"}, "setting 'topic' is unknown; did you mean topics"),
        (ARCHIVE | {"batch_rows": "many"}, "batch_rows is 'many'; it must be a whole number"),
        (ARCHIVE | {"once": "yes"}, "once is 'yes'; it must be true or false"),
        (ARCHIVE | {"to": 7}, "to is 7; it must be a text"),
    ],
)
def test_a_mistake_is_named(values, text):
    with pytest.raises(UsageError, match=text):
        build(Archive, values)


@pytest.mark.parametrize("job", JOBS.values())
def test_every_setting_says_what_it_is_for(job):
    from pyromq.spark.jobs.settings import flags

    assert all(each.metadata["doc"].endswith((".", "`.")) for each, _ in flags(job))


def test_pairs_are_split_at_the_first_equals_sign():
    assert pairs(("a=b=c", "d=")) == {"a": "b=c", "d": ""}
    with pytest.raises(UsageError, match="'x' is not of the form"):
        pairs(("x",))
