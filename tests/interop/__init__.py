"""The genuine RocketMQ programs against ours, both ways round. Run with `make interop`."""
