"""The console, which shows and manages a cluster in a browser through `AsyncAdmin` and the public clients.

See docs/console.md.
"""
