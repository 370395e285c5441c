"""Consumers in processes of their own, ours and Java's, and what feeds them."""
