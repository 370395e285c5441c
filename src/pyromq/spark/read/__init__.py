"""Reads topics as Spark batches and streams."""
