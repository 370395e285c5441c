"""Delayed messages: by delay level, or with a delivery time."""
