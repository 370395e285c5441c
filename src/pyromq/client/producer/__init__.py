"""Sending: the async producers and what becomes of a message on its way."""
