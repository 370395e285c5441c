"""The broker: stores messages of producers and serves them to consumers."""
