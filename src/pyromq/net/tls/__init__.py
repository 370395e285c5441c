"""TLS of connections: certificates, handshakes, and encryption."""
