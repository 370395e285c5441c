"""The pull consumer, with which the application asks for messages."""
