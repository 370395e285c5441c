"""What operators ask about messages."""
