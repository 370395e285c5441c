"""Code shared by push and pull consumers."""
