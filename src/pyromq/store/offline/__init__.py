"""A stopped store: looked at, checked, repaired."""
