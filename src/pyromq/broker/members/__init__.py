"""Connected producers and members of consumer groups."""
