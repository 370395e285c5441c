"""Who is connected: producers, and the members of consumer groups."""
