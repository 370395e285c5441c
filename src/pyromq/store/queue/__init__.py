"""Consume queues: where the messages of one queue lie in the log."""
