"""Answers requests of consumers: pulls, offsets, locks of orderly consumers, and messages sent back for a retry."""
