"""What consumers ask: messages, offsets, locks, and another try for what failed."""
