"""Writes rows to topics: at least once, idempotent, or exactly once."""
