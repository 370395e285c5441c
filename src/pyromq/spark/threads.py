"""The session that threads of the driver use: Spark gives a new thread none, and then does not find data sources."""

from __future__ import annotations

from pyspark.sql import SparkSession


def use_session(spark: SparkSession) -> None:
    """Make this the active session of the calling thread, so that the thread can write and start streams.

        with ThreadPoolExecutor(4, initializer=use_session, initargs=(spark,)) as pool:
            list(pool.map(load, tables))

    Spark looks for data sources in Python by the thread's active session, and reports DATA_SOURCE_NOT_FOUND if the
    thread has none. Sessions of Spark Connect need no such call: it does nothing for them.
    """
    if hasattr(spark, "_jsparkSession"):
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
