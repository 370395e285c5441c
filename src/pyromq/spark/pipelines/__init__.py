"""Spark Declarative Pipelines over topics."""
