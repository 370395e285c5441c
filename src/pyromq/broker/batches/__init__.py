"""Batch transactions: many messages decided by one record. RocketMQ has none."""
