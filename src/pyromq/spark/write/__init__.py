"""Writes to topics: at least once, idempotent, exactly once."""
