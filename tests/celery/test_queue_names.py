"""Queues and exchanges as topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.celery.queue_names import exchange_topic, queue_of, queue_topic
from pyromq.errors import IllegalName
from pyromq.names import check_topic

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)
PRIORITIES = st.integers(0, 9)


@given(NAMES, PRIORITIES)
def test_the_topic_of_a_queue_is_legal_and_maps_back(queue, priority):
    topic = queue_topic(queue, priority)
    check_topic(topic)
    assert queue_of(topic) == (queue, priority)


@given(NAMES, PRIORITIES, NAMES)
def test_the_topic_of_an_exchange_is_legal_and_no_queue_s(exchange, priority, queue):
    check_topic(exchange_topic(exchange))
    assert exchange_topic(exchange) != queue_topic(queue, priority)


def test_usual_names_are_kept():
    assert queue_topic("celery") == "celery"
    assert queue_topic("high.prio", 6) == "high%2Eprio%p6"
    assert exchange_topic("celery.pidbox") == "%xcelery%2Epidbox"


@pytest.mark.parametrize("queue", ["", "x" * 128, "ü" * 22])
def test_a_name_that_makes_no_topic_is_named(queue):
    with pytest.raises(IllegalName, match="choose a shorter name"):
        queue_topic(queue)
