"""Answers requests of producers. Processors append messages through `broker/put_message.py`."""
