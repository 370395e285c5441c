"""Finding messages, following them as they come, and giving them out as files."""
