"""What administrators and their tools ask."""
