"""Settings are checked when they are made."""

import pytest

from pyromq.client.client_config import ConsumerConfig, ProducerConfig
from pyromq.errors import UsageError


@pytest.mark.parametrize(
    ("field", "value"),
    [("timeout", 0), ("retries", -1), ("compression_level", 10), ("max_in_flight", 0), ("new_topic_queues", 0)],
)
def test_a_producer_setting_out_of_range_is_named_with_its_value(field, value):
    with pytest.raises(UsageError, match=f"{field}={value} is out of range"):
        ProducerConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("pull_count", 0), ("long_poll_seconds", -1), ("buffered_messages", 0), ("pull_interval_seconds", 66)],
)
def test_a_consumer_setting_out_of_range_is_named_with_its_value(field, value):
    with pytest.raises(UsageError, match=f"{field}={value} is out of range"):
        ConsumerConfig(**{field: value})
