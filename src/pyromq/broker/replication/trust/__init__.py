"""Security between the replicas of a set: TLS for their connections, and signed hellos."""
