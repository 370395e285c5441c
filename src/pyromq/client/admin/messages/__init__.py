"""Requests of operators about messages."""
