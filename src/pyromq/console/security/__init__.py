"""Access to the console: accounts and their file, sessions, and the audit log."""
