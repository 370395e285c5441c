"""Figures of a running server, as Prometheus reads them."""
