"""asyncio around remoting: the server, the client's connections, periodic tasks."""
