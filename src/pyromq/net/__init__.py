"""Connections over asyncio: the server, the client's connections, and periodic tasks."""
