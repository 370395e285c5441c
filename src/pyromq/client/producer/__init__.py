"""The async producers, and the way of a message to a broker."""
