"""Searching messages, following a topic, and exporting messages as files."""
