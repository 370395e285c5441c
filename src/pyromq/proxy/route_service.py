"""Answers QueryRoute and QueryAssignment: the queues of a topic, all at the endpoints of the proxy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyromq.client.cluster.topic_routes import Route
from pyromq.errors import IllegalName
from pyromq.excerpt import excerpt
from pyromq.message import MessageQueue
from pyromq.names import check_group, is_system_group
from pyromq.proxy.grpc_dispatch import Caller, answers_call
from pyromq.proxy.grpc_refusal import GrpcRefusal, ok
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.sent_messages import check_topic_name

MAX_ENDPOINTS = 64  # limit of the addresses in a request
ALL_QUEUES = -1  # queue id that stands for all queues of a broker


class RouteService:
    """Answers QueryRoute and QueryAssignment.

    Responses have the `advertised` endpoints; None: the endpoints of the request, which also work behind port mappings.
    """

    def __init__(self, advertised: proto.Endpoints | None) -> None:
        self._advertised = advertised

    @answers_call("QueryRoute")
    async def query_route(self, caller: Caller, request: service.QueryRouteRequest) -> service.QueryRouteResponse:
        topic = request.topic.name
        check_topic_name(topic)
        endpoints = self._endpoints(request.endpoints)
        types = (await caller.access.types(topic)).accepted
        route = await caller.access.route(topic)
        queues = [
            _queue(request.topic, queue, permission, endpoints, types) for queue, permission in _with_permission(route)
        ]
        if not queues:
            text = f"topic {topic!r} has no queue that can be read or written: no master, or no permission"
            raise GrpcRefusal(proto.FORBIDDEN, text)
        return service.QueryRouteResponse(status=ok(), message_queues=queues)

    @answers_call("QueryAssignment")
    async def query_assignment(
        self, caller: Caller, request: service.QueryAssignmentRequest
    ) -> service.QueryAssignmentResponse:
        """Assign all queues to every member.

        Members of an orderly group get an entry for each queue, other members one entry for all queues of a broker.
        """
        topic, group = request.topic.name, request.group.name
        check_topic_name(topic)
        check_group_name(group)
        endpoints = self._endpoints(request.endpoints)
        route = await caller.access.route(topic)
        readable: Iterable[MessageQueue] = route.readable
        if not (await caller.access.group(group)).is_orderly:
            readable = [
                MessageQueue(topic, name, ALL_QUEUES) for name in dict.fromkeys(q.broker_name for q in readable)
            ]
        assignments = [
            proto.Assignment(message_queue=_queue(request.topic, queue, proto.READ, endpoints, ()))
            for queue in readable
        ]
        if not assignments:
            raise GrpcRefusal(proto.FORBIDDEN, f"topic {topic!r} has no queue that can be read")
        return service.QueryAssignmentResponse(status=ok(), assignments=assignments)

    def _endpoints(self, requested: proto.Endpoints) -> proto.Endpoints:
        if not 0 < len(requested.addresses) <= MAX_ENDPOINTS:
            text = f"endpoints have {len(requested.addresses)} addresses; give 1 to {MAX_ENDPOINTS}"
            raise GrpcRefusal(proto.ILLEGAL_ACCESS_POINT, text)
        for address in requested.addresses:
            if not address.host or not 0 < address.port < 65536:
                text = f"endpoint {excerpt(address.host, 80)!r}:{address.port} is not an address; write HOST:PORT"
                raise GrpcRefusal(proto.ILLEGAL_ACCESS_POINT, text)
        return self._advertised or requested


def check_group_name(group: str) -> None:
    """Raise `GrpcRefusal` for an illegal group name, or a system group."""
    try:
        check_group(group)
    except IllegalName as error:
        raise GrpcRefusal(proto.ILLEGAL_CONSUMER_GROUP, f"group {excerpt(group, 130)!r}: {error}") from error
    if is_system_group(group):
        raise GrpcRefusal(proto.ILLEGAL_CONSUMER_GROUP, f"group {group!r} is a system group; choose another name")


def _with_permission(route: Route) -> list[tuple[MessageQueue, proto.Permission]]:
    readable, writable = set(route.readable), set(route.writable)
    found: list[tuple[MessageQueue, proto.Permission]] = []
    for queue in sorted(readable | writable):
        if queue in readable and queue in writable:
            found.append((queue, proto.READ_WRITE))
        else:
            found.append((queue, proto.READ if queue in readable else proto.WRITE))
    return found


def _queue(
    topic: proto.Resource,
    queue: MessageQueue,
    permission: proto.Permission,
    endpoints: proto.Endpoints,
    types: Sequence[proto.MessageType],
) -> proto.MessageQueue:
    broker = proto.Broker(name=queue.broker_name, id=0, endpoints=endpoints)
    return proto.MessageQueue(
        topic=topic, id=queue.queue_id, permission=permission, broker=broker, accept_message_types=types
    )
