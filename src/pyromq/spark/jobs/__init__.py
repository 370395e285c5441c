"""Jobs people otherwise write by hand: archive, audit, metrics, replay, redrive and mirror.

Each is a function `run(settings, tell)` in a module of its own, which imports pyspark; `settings` does not.
"""
