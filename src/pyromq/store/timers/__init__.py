"""Scheduled messages (messages with a delivery time), stored in one bucket of files per hour."""
