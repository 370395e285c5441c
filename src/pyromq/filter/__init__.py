"""Filters: which messages a subscription selects. No sockets, no store."""
