"""Requests of consumers: pulls, offsets, locks, and messages sent back."""
