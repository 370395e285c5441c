"""Sets the Spark session of threads: without one, Spark does not find data sources in Python."""

from __future__ import annotations

from pyromq.extras import packages_of

with packages_of("spark", "pyromq.spark.threads"):
    from pyspark.sql import SparkSession


def use_session(spark: SparkSession) -> None:
    """Make this the active session of the calling thread, so that the thread can write and start streams.

        with ThreadPoolExecutor(4, initializer=use_session, initargs=(spark,)) as pool:
            list(pool.map(load, tables))

    Spark finds data sources in Python by the thread's active session. A new thread has none, and Spark then reports
    DATA_SOURCE_NOT_FOUND. Does nothing for sessions of Spark Connect, whose threads need no active session.
    """
    if hasattr(spark, "_jsparkSession"):
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
