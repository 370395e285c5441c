"""Clients: producer, pull consumer and admin, async and blocking. Users import them from `pyromq`."""
