"""Remote control `add_consumer` of workers: a queue that cannot be declared is refused.

Celery declares the queue after its reply, on the worker's event loop. There an error ends the worker.
"""

from __future__ import annotations

from typing import Any

from celery.worker.control import Panel, control_command, nok
from kombu import Queue
from kombu.transport.virtual import NotEquivalentError

from pyromq.celery.rocketmq_channel import RocketChannel
from pyromq.errors import MQError

_declare_later = Panel.data["add_consumer"]


@control_command(
    args=[("queue", str), ("exchange", str), ("exchange_type", str), ("routing_key", str)],
    signature="<queue> [exchange [type [routing_key]]]",
)
def add_consumer(
    state: Any,
    queue: str,
    exchange: str | None = None,
    exchange_type: str | None = None,
    routing_key: str | None = None,
    **options: Any,
) -> Any:
    """Tell worker(s) to consume from task queue by name."""
    channel = state.consumer.task_consumer.channel
    if isinstance(channel, RocketChannel):
        known = state.app.amqp.queues
        place = {"exchange": exchange or queue, "exchange_type": exchange_type, "routing_key": routing_key or queue}
        if reason := _refusal(channel, queue, known.get(queue), options | place):
            return nok(f"queue {queue!r:.100} is not added: {reason}")
    return _declare_later(state, queue, exchange, exchange_type, routing_key, **options)


def _refusal(channel: RocketChannel, name: Any, configured: Any, options: dict[str, Any]) -> str:
    """Declare a queue. Return the reason if this is impossible, else ""."""
    exchange, kind = options["exchange"], options["exchange_type"] or "direct"
    if not (isinstance(name, str) and name and isinstance(exchange, str)):
        return "the name of a queue, and of its exchange, is a string that is not empty"
    if kind not in (kinds := channel.connection.implements.exchange_type):
        return f"exchange type {kind!r:.100} is unknown; use {', '.join(sorted(kinds))}"
    try:
        (configured or Queue.from_dict(name, **options))(channel).declare()
    except (MQError, NotEquivalentError) as error:
        return str(error)
    return ""
