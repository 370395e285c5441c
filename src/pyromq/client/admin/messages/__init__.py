"""Requests of administrators about messages."""
