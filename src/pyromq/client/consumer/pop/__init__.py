"""Pop consumption: a received message is invisible to the group for a time, and acknowledged by itself."""
