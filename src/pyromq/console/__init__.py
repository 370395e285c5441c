"""The console: a cluster in a browser, over the same `AsyncAdmin` and clients as everybody's. See docs/console.md."""
