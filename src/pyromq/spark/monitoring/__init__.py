"""Reports progress and lag of streaming queries."""
