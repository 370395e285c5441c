"""Connected clients: producers by group, and members of consumer groups."""
