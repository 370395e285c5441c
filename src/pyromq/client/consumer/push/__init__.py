"""The push consumer, which calls listeners with messages."""
