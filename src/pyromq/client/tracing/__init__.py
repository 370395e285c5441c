"""Message traces in a topic of their own, as those of the Java clients; OpenTelemetry and Prometheus."""
