"""Accounts and their rights at a broker, as in RocketMQ 4.9."""
