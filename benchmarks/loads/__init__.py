"""What asks servers for something, beside the external load generator: prepared, paced, timed and blocking requests."""
