"""Ready-made jobs: archive, audit, metrics, replay, redrive and mirror.

Each module has a function `run(settings, tell)` and imports pyspark; `settings` does not.
"""
