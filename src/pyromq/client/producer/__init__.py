"""The async producers, and the code that sends their messages to brokers."""
