"""The key index: log offsets by message key."""
