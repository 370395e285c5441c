"""The push consumer: it calls listeners with messages."""
