"""Calls of RocketMQ 5's protocol by grpcio, whose messages are checked by the official definitions."""

from __future__ import annotations

import grpc

from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service

PREFIX = "/apache.rocketmq.v2.MessagingService/"
SECONDS = 30.0


class Calls:
    """A client's channel. Each unary method is called by its name: `await calls("SendMessage", request)`."""

    def __init__(self, address: str, client_id: str = "host@1@0@a", **metadata: str) -> None:
        self.metadata = [("x-mq-client-id", client_id)] if client_id else []
        self.metadata += [(name.replace("_", "-"), value) for name, value in metadata.items()]
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.endpoints = endpoints(address)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def __call__(self, name: str, request, *, seconds: float = SECONDS):
        response = getattr(service, f"{name}Response")
        method = self.channel.unary_unary(
            PREFIX + name, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        return await method(request, metadata=self.metadata, timeout=seconds)

    def receive(self, request, *, seconds: float = SECONDS):
        """Return the stream of a ReceiveMessage call."""
        method = self.channel.unary_stream(
            PREFIX + "ReceiveMessage",
            request_serializer=type(request).SerializeToString,
            response_deserializer=service.ReceiveMessageResponse.FromString,
        )
        return method(request, metadata=self.metadata, timeout=seconds)

    def telemetry(self):
        """Return an open Telemetry stream, with `write` and `read`."""
        method = self.channel.stream_stream(
            PREFIX + "Telemetry",
            request_serializer=service.TelemetryCommand.SerializeToString,
            response_deserializer=service.TelemetryCommand.FromString,
        )
        return method(metadata=self.metadata)

    async def settings(self, settings: proto.Settings):
        """Send settings on a new stream; return the stream and the completed settings."""
        stream = self.telemetry()
        await stream.write(service.TelemetryCommand(settings=settings))
        answer = await stream.read()
        assert answer.status.code == proto.OK, answer
        return stream, answer.settings

    async def send(self, *messages: proto.Message):
        return await self("SendMessage", service.SendMessageRequest(messages=messages))


def endpoints(address: str) -> proto.Endpoints:
    host, _, port = address.rpartition(":")
    return proto.Endpoints(scheme=proto.IPv4, addresses=[proto.Address(host=host, port=int(port))])


def message(topic: str = "orders", body: bytes = b"hello", message_id: str = "01A", **system) -> proto.Message:
    """Return a message to send; `system` are system properties."""
    properties = system.pop("user_properties", {})
    system.setdefault("message_type", proto.NORMAL)
    found = proto.Message(topic=proto.Resource(name=topic), body=body, user_properties=properties)
    found.system_properties.CopyFrom(proto.SystemProperties(message_id=message_id, **system))
    return found


def subscription(group: str, topic: str, kind: int = proto.SIMPLE_CONSUMER) -> proto.Settings:
    """Return the settings of a consumer."""
    entry = proto.SubscriptionEntry(
        topic=proto.Resource(name=topic), expression=proto.FilterExpression(type=proto.TAG, expression="*")
    )
    settings = proto.Settings(client_type=kind)
    settings.subscription.group.name = group
    settings.subscription.subscriptions.append(entry)
    return settings


def publishing(*topics: str) -> proto.Settings:
    """Return the settings of a producer."""
    settings = proto.Settings(client_type=proto.PRODUCER)
    settings.publishing.topics.extend(proto.Resource(name=topic) for topic in topics)
    return settings
