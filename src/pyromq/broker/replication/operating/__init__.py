"""Requests of administrators to a replica set: its state, a planned failover, an accepted loss, and metrics."""
