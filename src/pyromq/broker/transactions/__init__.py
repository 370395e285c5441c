"""RocketMQ's transactions of single messages: half messages, the decisions on them, and checks with their producers."""
