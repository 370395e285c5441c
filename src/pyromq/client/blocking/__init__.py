"""The blocking clients: the async ones behind a portal."""
