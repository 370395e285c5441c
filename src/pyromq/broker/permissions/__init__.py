"""Accounts and their rights at a broker, as in RocketMQ 4.9: rights on topics and groups, and administrators."""
