"""RocketMQ as a PySpark data source. The only package that imports pyspark."""
