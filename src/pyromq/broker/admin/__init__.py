"""Requests of administrators and their tools."""
