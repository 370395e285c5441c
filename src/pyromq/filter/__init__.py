"""Deciding which messages a subscription wants. No sockets, no store."""
