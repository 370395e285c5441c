"""The pull consumer: the application asks for messages."""
