"""Ready-made jobs: archive, audit, metrics, replay, redrive and mirror.

Each module `*_job` has a function `run(settings, tell)` and imports pyspark. Module `settings` does not import pyspark.
"""
