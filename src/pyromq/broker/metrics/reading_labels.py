"""The labels of what a group reads of a topic, as RocketMQ 5 has them."""

from __future__ import annotations

from pyromq.metrics.exposition import label_text
from pyromq.names import RETRY_PREFIX, is_system_group, is_system_topic


def reading_labels(group: str, topic: str) -> str:
    """Return group and topic with what they are. Source: RocketMQ 5, BrokerMetricsManager.buildLagAttributes."""
    return label_text(
        consumer_group=group,
        topic=topic,
        is_retry=truth(topic.startswith(RETRY_PREFIX)),
        is_system=truth(is_system_topic(topic) or is_system_group(group)),
    )


def truth(value: bool) -> str:
    """Return a label's value as Java writes it."""
    return "true" if value else "false"
