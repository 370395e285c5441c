"""What push and pull consumers share."""
