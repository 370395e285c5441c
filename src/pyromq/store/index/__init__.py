"""The key index: from message keys to log offsets."""
