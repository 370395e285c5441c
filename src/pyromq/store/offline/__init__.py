"""Checks and repairs the store of a stopped broker."""
