"""The messages of RocketMQ's gRPC protocol. `make protos` makes `rocketmq.binpb` and the stubs of the two modules."""
