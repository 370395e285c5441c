"""Consume queues: the places of a queue's messages in the log."""
