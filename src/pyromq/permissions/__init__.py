"""Accounts and their rights, as RocketMQ 4.9 keeps them in files: for brokers, and for name servers that are closed."""
