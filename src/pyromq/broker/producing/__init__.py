"""Requests of producers. The one way into the log is `broker/put_message.py`."""
