"""The key index: finds the log offsets of messages by key."""
