"""The header of a plain send request, as RocketMQ's clients fill it."""

from __future__ import annotations

import time

from pyromq.remoting.headers import SendMessageV2


def plain_send(topic: str, queue_id: int = 0, *, properties: str = "", batch: bool = False) -> SendMessageV2:
    return SendMessageV2(
        producer_group="bench",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=queue_id,
        sys_flag=0,
        born_ms=int(time.time() * 1000),
        flag=0,
        properties=properties,
        batch=batch or None,
    )
