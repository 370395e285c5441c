"""What becomes of messages, told to a topic of its own as Java's clients tell it."""
