"""RocketMQ's transactions: half messages, their decisions and checks."""
