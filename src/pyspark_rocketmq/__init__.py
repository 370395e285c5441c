"""Spark looks for data sources in top-level modules named `pyspark_*`; this one leads it to pyromq's.

Imports nothing heavy by itself and never fails: one such module that does not load hides all others from Spark.
"""

try:
    from pyromq.spark.source import RocketMQDataSource as DefaultSource  # noqa: F401  Spark looks it up by name
except ImportError:  # without pyspark or pyarrow no program can use it
    pass
