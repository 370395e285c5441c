"""The broker: stores messages for producers, serves them to consumers."""
