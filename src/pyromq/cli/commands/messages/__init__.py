"""Commands that send, read and manage messages."""
