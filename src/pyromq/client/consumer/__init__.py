"""Consuming: what push and pull consumers share."""
