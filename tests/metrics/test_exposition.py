"""The text that Prometheus reads: families in one piece, values of strangers as values, a bound of series."""

import pytest
from tests.slow_work import steps_of

from pyromq.metrics.exposition import Exposition, Family, Histogram, MetricKind, label_text
from pyromq.slow_work import run_blocking

SENT = Family("sent_total", MetricKind.COUNTER, "Messages sent.", ("topic",))
QUEUED = Family("queued", MetricKind.GAUGE, "Messages in a queue.", ("queue_id",), detail=True)


def text_of(exposition):
    return b"".join(run_blocking(exposition.text())).decode()


def test_families_are_told_in_one_piece_with_what_they_mean():
    exposition = Exposition(10)
    exposition.add(SENT, label_text(topic="a"), 1)
    exposition.add(QUEUED, label_text(queue_id="0"), 0.5)
    exposition.add(SENT, label_text(topic="b"), 2)

    assert text_of(exposition) == (
        "# HELP sent_total Messages sent.\n# TYPE sent_total counter\n"
        'sent_total{topic="a"} 1\nsent_total{topic="b"} 2\n'
        "# HELP queued Messages in a queue.\n# TYPE queued gauge\n"
        'queued{queue_id="0"} 0.5\n'
    )


def test_a_histogram_counts_up_to_each_bound_and_sums():
    seconds = Family("wait_seconds", MetricKind.HISTOGRAM, "How long.", ("page",))
    histogram = Histogram((0.1, 1))
    for value in (0.05, 0.1, 0.5, 7):
        histogram.observe(value)
    exposition = Exposition(10)
    histogram.tell(exposition, seconds, 'page="/"')

    assert text_of(exposition) == (
        "# HELP wait_seconds How long.\n# TYPE wait_seconds histogram\n"
        'wait_seconds_bucket{page="/",le="0.1"} 2\nwait_seconds_bucket{page="/",le="1"} 3\n'
        'wait_seconds_bucket{page="/",le="+Inf"} 4\nwait_seconds_sum{page="/"} 7.65\nwait_seconds_count{page="/"} 4\n'
    )


def test_a_value_cannot_end_its_label():
    assert label_text(topic='a"} 1\nfoo{b="\\') == 'topic="a\\"} 1\\nfoo{b=\\"\\\\"'
    assert label_text(topic="\ud800") == 'topic="?"'


def test_details_are_left_out_first():
    exposition = Exposition(3)
    for number in range(2):
        exposition.add(QUEUED, label_text(queue_id=str(number)), 0)
    for topic in "ab":
        exposition.add(SENT, label_text(topic=topic), 1)
    text = text_of(exposition)

    assert exposition.left_out
    assert len(exposition) == 3
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'queued{queue_id="0"} 0',
        'sent_total{topic="a"} 1',
        'sent_total{topic="b"} 1',
    ]


@pytest.mark.parametrize("family", [SENT, QUEUED])
def test_there_are_never_more_than_the_limit(family):
    exposition = Exposition(3)
    for number in range(5):
        exposition.add(family, f'n="{number}"', 0)

    assert text_of(exposition).count("n=") == len(exposition) == 3
    assert exposition.left_out


def test_details_of_many_queues_are_as_those_of_each():
    one_by_one, together = Exposition(5), Exposition(5)
    for exposition in (one_by_one, together):
        exposition.add(SENT, label_text(topic="a"), 1)
    for number in range(3):
        one_by_one.add(QUEUED, f'topic="a",queue_id="{number}"', number / 4)
    together.add_details(QUEUED, 'topic="a"', "queue_id", {number: number / 4 for number in range(3)})
    assert not together.left_out
    assert text_of(together) == text_of(one_by_one)


def test_details_of_many_queues_end_at_the_limit():
    exposition = Exposition(3)
    exposition.add_details(QUEUED, 'topic="a"', "queue_id", dict.fromkeys(range(2), 0))
    exposition.add(SENT, label_text(topic="a"), 1)
    exposition.add_details(QUEUED, 'topic="b"', "queue_id", dict.fromkeys(range(2), 0))
    assert exposition.left_out
    assert len(exposition) == 3
    assert text_of(exposition).count("queued{") == 2


def test_many_lines_may_be_left_for_a_while_between():
    exposition = Exposition(10_000)
    for number in range(2_500):
        exposition.add(SENT, f'n="{number}"', 0)

    assert sum(1 for _ in steps_of(exposition.text())) == 3
