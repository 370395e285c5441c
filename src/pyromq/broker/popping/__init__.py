"""Pop consumption: the broker hands out messages for an invisible time, and redelivers unacknowledged messages."""
