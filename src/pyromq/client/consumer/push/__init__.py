"""The push consumer: messages are given to listeners."""
