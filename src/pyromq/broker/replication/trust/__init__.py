"""How the replicas of a set trust each other: TLS of their connections, and signed hellos."""
