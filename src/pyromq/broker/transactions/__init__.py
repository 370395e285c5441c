"""Messages that wait for their producer's decision, as RocketMQ has them."""
