"""The admin client, for administrators of a cluster."""
