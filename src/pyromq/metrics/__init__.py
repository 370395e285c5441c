"""The metrics of a running server, in the format of Prometheus."""
