"""Progress and lag of streaming queries."""
