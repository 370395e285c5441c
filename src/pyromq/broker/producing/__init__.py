"""What producers ask: messages are stored. The one way into the log is `broker/put_message.py`."""
