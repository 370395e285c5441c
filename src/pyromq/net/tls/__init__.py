"""TLS of connections: certificates, handshakes, encryption."""
