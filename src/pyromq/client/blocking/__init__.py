"""Blocking clients, made of the async ones."""
