"""The cluster as the console shows it: clients, a snapshot, and the history of the last hour."""
