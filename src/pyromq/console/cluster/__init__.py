"""The cluster as the console sees it: clients, what they find at one moment, and what that was in the last hour."""
