"""Stores messages on disk in RocketMQ's formats: commit log, consume queues, key index. No sockets, no asyncio."""
