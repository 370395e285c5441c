"""Encrypted connections: who is trusted, what is shown, and bytes on their way through TLS."""
