"""Requests and responses of RocketMQ's gRPC protocol; the stub file has the names."""

from pyromq.proxy.proto.descriptors import define

define(globals(), "apache/rocketmq/v2/service.proto")
