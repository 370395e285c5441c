"""Hooks for message traces in a trace topic (as of Java's clients), for OpenTelemetry and Prometheus."""
