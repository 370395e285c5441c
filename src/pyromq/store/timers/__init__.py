"""Messages that wait for a time of their own, filed by hour."""
