"""Filters of subscriptions, which select messages by tag or by SQL92 expression. No sockets, no store."""
