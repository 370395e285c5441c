"""Resources, messages and settings of RocketMQ's gRPC protocol; the stub file has the names."""

from pyromq.proxy.proto.descriptors import define

define(globals(), "apache/rocketmq/v2/definition.proto")
