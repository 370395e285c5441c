"""Reading topics: batches and streams."""
