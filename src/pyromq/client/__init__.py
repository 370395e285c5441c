"""Clients: producers, push and pull consumers, admin clients; async and blocking. Users import them from `pyromq`."""
