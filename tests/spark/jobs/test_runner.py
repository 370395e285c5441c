"""What a job sums up of Spark's reports, which overlap from one look to the next; without a session."""

import json
import logging
import signal

import pytest

pytest.importorskip("pyspark")

from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.spark.jobs.runner import Totals, stop_signals
from pyromq.spark.jobs.setting_checks import spark_interval
from pyromq.spark.read.stream_offset import StreamOffset

AT_3 = StreamOffset({MessageQueue("orders", "broker-a", 0): 3})


def report(number, rows, start, end, latest, **more):
    offsets = {
        name: {"v": 1, "t": {"orders": {"broker-a": {"0": offset}}}}
        for name, offset in (("startOffset", start), ("endOffset", end), ("latestOffset", latest))
        if offset is not None
    }
    base = {"timestamp": f"2026-01-31T12:00:{number:02}Z", "numInputRows": rows, "stateOperators": []}
    return json.dumps(base | {"sources": [offsets]} | more)


def test_batches_count_once_however_often_they_are_reported():
    totals = Totals(AT_3)
    reports = [report(1, 5, None, 8, 9), report(2, 4, 8, 12, 15), report(3, 0, 12, 12, 15), report(4, 3, 12, 15, 20)]
    totals.note(reports[:2])
    totals.note(reports[:3])
    totals.note(reports[2:])
    summary = totals.summary()
    place = {"topic": "orders", "broker": "broker-a", "queue": 0}
    assert summary.rows == [place | {"from": 3, "to": 15, "read": 12, "left": 5}]
    assert (totals.rows, summary.notes) == (12, ("12 messages in 3 batches",))


def test_late_messages_are_counted():
    totals = Totals(AT_3)
    late = [{"numRowsDroppedByWatermark": 2}, {}]
    totals.note([report(1, 5, 0, 5, 5, stateOperators=late)])
    assert totals.summary().notes[-1] == "2 partial counts of late messages were dropped"


def test_a_job_without_batches_has_nothing_to_say():
    assert Totals(AT_3).summary().rows == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_stops_at_the_signals_of_terminals_and_of_service_managers(number):
    before = signal.getsignal(number)
    with stop_signals() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("10s", "10 seconds"),
        ("10 seconds", "10 seconds"),
        ("1 second", "1 seconds"),
        ("500ms", "500 milliseconds"),
        ("5 min", "5 minutes"),
        ("1h30m", "1 hours 30 minutes"),
        ("1 hour 30 minutes", "1 hours 30 minutes"),
        ("2d", "2 days"),
        ("0s", "0 seconds"),
    ],
)
def test_a_length_of_time_is_said_in_sparks_words(text, interval):
    assert spark_interval("every", text) == interval


@pytest.mark.parametrize("text", ["", "10", "s", "10 parsecs", "1.5s", "-1s", "10s, 5s"])
def test_what_is_no_length_of_time_is_told_with_its_setting(text):
    with pytest.raises(UsageError, match=f"setting every is {text!r}; write a duration"):
        spark_interval("every", text)


@pytest.mark.parametrize("name", ["DataFrameQueryContextLogger", "SQLQueryContextLogger"])
def test_errors_that_are_raised_are_not_logged_as_json_too(name):
    assert not logging.getLogger(name).isEnabledFor(logging.ERROR)
