"""Consume queues: the place of each message of a queue in the commit log."""
