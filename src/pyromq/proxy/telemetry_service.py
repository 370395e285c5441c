"""Answers Telemetry, Heartbeat and NotifyClientTermination: registers clients, completes settings, removes clients."""

from __future__ import annotations

from pyromq.errors import Unavailable
from pyromq.excerpt import excerpt
from pyromq.proxy.client_table import CONSUMER_TYPES, MAX_TOPICS, GrpcClient
from pyromq.proxy.grpc_dispatch import Caller, answers_call
from pyromq.proxy.grpc_refusal import GrpcRefusal, ok, status_of
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.route_service import check_group_name
from pyromq.proxy.sent_messages import DELAY_LEVEL_SECONDS, MAX_BODY_BYTES, check_topic_name
from pyromq.remoting.bodies import GroupConfig

RECEIVE_BATCH = 32  # messages that a push consumer asks for. Source: ProxyConfig
POLL_SECONDS = 20
PRODUCER_ATTEMPTS = 3


class TelemetryService:
    """Answers Telemetry, Heartbeat and NotifyClientTermination."""

    async def handle(self, caller: Caller, command: service.TelemetryCommand) -> None:
        """Store a client's settings and send them back completed, or pass on the client's answer to a command."""
        if not command.HasField("settings"):
            _answer_command(caller, command)
            return
        settings = command.settings
        client = caller.access.clients.register(caller.client_id)
        caller.access.clients.keep_settings(client, command.ByteSize())
        if caller.stream.is_open:
            client.stream = caller.stream  # replaces an older stream of the client
        if settings.HasField("publishing"):
            topics = _checked_topics([each.name for each in settings.publishing.topics])
            client.kind, client.topics = proto.PRODUCER, frozenset(topics)
            _complete_producer(settings)
        elif settings.HasField("subscription"):
            await self._take_subscription(caller, client, settings)
        else:
            text = "the settings have neither publishing nor subscription: the client must be a producer or a consumer"
            raise GrpcRefusal(proto.BAD_REQUEST, text)
        settings.metric.on = False
        caller.count(status := ok())
        caller.stream.send(service.TelemetryCommand(status=status, settings=settings).SerializeToString())
        await self._announce(caller, client)

    def ended(self, caller: Caller) -> None:
        client = caller.access.clients.find(caller.client_id)
        if client is not None and client.stream is caller.stream:
            client.stream = None

    @answers_call("Heartbeat")
    async def heartbeat(self, caller: Caller, request: service.HeartbeatRequest) -> service.HeartbeatResponse:
        """Register the client again. After a restart of the proxy, a heartbeat may be the first call of a client."""
        client = caller.access.clients.find(caller.client_id)
        if request.client_type == proto.CLIENT_TYPE_UNSPECIFIED and client is None:
            text = "the heartbeat has no client type: it must name a producer or a consumer"
            raise GrpcRefusal(proto.UNRECOGNIZED_CLIENT_TYPE, text)
        if request.group.name:
            check_group_name(request.group.name)
        is_new = client is None
        client = caller.access.clients.register(caller.client_id)
        if is_new:
            client.kind, client.group = request.client_type, request.group.name
        return service.HeartbeatResponse(status=ok())

    @answers_call("NotifyClientTermination")
    async def terminate(
        self, caller: Caller, request: service.NotifyClientTerminationRequest
    ) -> service.NotifyClientTerminationResponse:
        """Remove a client. Its waiting receives are answered without messages."""
        client = caller.access.clients.find(caller.client_id)
        if client is None:
            text = f"client {excerpt(caller.client_id, 80)!r} is not known: it sent neither settings nor heartbeats"
            raise GrpcRefusal(proto.UNRECOGNIZED_CLIENT_TYPE, text)
        await caller.access.forget(client)
        return service.NotifyClientTerminationResponse(status=ok())

    async def _take_subscription(self, caller: Caller, client: GrpcClient, settings: proto.Settings) -> None:
        subscription = settings.subscription
        group = subscription.group.name
        check_group_name(group)
        _checked_topics([each.topic.name for each in subscription.subscriptions])
        is_known = settings.client_type in CONSUMER_TYPES
        client.kind = settings.client_type if is_known else proto.SIMPLE_CONSUMER
        client.group = group
        client.subscriptions = {each.topic.name: each.expression for each in subscription.subscriptions}
        _complete_consumer(settings, await caller.access.group(group))

    async def _announce(self, caller: Caller, client: GrpcClient) -> None:
        try:
            if client.is_consumer:
                await caller.access.announce_members(client)
            else:
                await caller.access.start()
                await caller.access.announce_producers()
        except Unavailable as error:  # the client has its settings; the proxy's next heartbeat announces it
            caller.stream.send(service.TelemetryCommand(status=status_of(error)).SerializeToString())


def _answer_command(caller: Caller, answer: service.TelemetryCommand) -> None:
    client = caller.access.clients.find(caller.client_id)
    nonce = answer.thread_stack_trace.nonce or answer.verify_message_result.nonce
    if client is not None and (answered := client.pending_commands.pop(nonce, None)) is not None:
        answered(answer)


def _checked_topics(topics: list[str]) -> list[str]:
    if len(topics) > MAX_TOPICS:
        text = f"the settings have {len(topics)} topics; the limit is {MAX_TOPICS}: use several clients"
        raise GrpcRefusal(proto.BAD_REQUEST, text)
    for topic in topics:
        check_topic_name(topic)
    return topics


def _complete_producer(settings: proto.Settings) -> None:
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = PRODUCER_ATTEMPTS
    policy.exponential_backoff.initial.FromMilliseconds(10)
    policy.exponential_backoff.max.FromSeconds(1)
    policy.exponential_backoff.multiplier = 2
    settings.publishing.max_body_size = MAX_BODY_BYTES
    settings.publishing.validate_message_type = True


def _complete_consumer(settings: proto.Settings, group: GroupConfig) -> None:
    policy = settings.backoff_policy
    policy.Clear()
    policy.max_attempts = group.retry_max_times + 1
    for seconds in DELAY_LEVEL_SECONDS:  # source: CustomizedRetryPolicy
        policy.customized_backoff.next.add(seconds=seconds)
    subscription = settings.subscription
    subscription.fifo = group.is_orderly
    subscription.receive_batch_size = RECEIVE_BATCH
    subscription.long_polling_timeout.FromSeconds(POLL_SECONDS)
