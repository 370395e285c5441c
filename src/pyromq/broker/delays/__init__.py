"""Messages that wait: for a delay level, or for a time of their own."""
