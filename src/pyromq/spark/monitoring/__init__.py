"""How far queries are, and how far behind."""
