"""Cancelling a message that waits for its time, by the handle that its send result carried.

The handle says all: topic, broker, due time and unique key. Source: RocketMQ 5.3.3, DefaultMQProducerImpl.
"""

from __future__ import annotations

from pyromq.client.cluster.cluster_client import API_SECONDS, ClusterClient
from pyromq.errors import Unavailable, UsageError
from pyromq.remoting.headers import RecallMessage, RecallMessageResponse
from pyromq.remoting.recall_handle import decode_handle


async def recall(
    cluster: ClusterClient, recall_handle: str | None, *, group: str | None = None, timeout: float = API_SECONDS
) -> str:
    """Cancel a message and return its unique id: once this returns, nobody gets it. Asked once; seconds.

    Raises `RecallRefused` when it was delivered or cancelled before, and for what is no handle; `TopicNotFound`;
    `Unavailable` when its broker is not there or does not answer - then it may be cancelled all the same.
    """
    if not isinstance(recall_handle, str):
        raise UsageError(
            f"cancel takes the recall_handle of a send result, not {recall_handle!r}; only messages that wait for"
            " deliver_at or delay have one"
        )
    cluster.check_running()
    handle = decode_handle(recall_handle)
    route = await cluster.route(handle.topic)
    if route.master(handle.broker_name) is None:
        await cluster.refresh(handle.topic)
        route = await cluster.route(handle.topic)
    address = route.master(handle.broker_name)
    if address is None:
        raise Unavailable(f"broker {handle.broker_name!r} is not in the route of topic {handle.topic!r}")
    order = RecallMessage(
        topic=handle.topic, recall_handle=recall_handle, producer_group=group, broker_name=handle.broker_name
    )
    answer = (await cluster.ask(address, order, timeout=timeout)).check()
    return answer.header(RecallMessageResponse).message_id
