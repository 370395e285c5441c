"""Blocking clients, made from the async clients."""
