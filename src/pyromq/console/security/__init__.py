"""Who may do what in the console: accounts and their file, sessions, and the log of changes."""
