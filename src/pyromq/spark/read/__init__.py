"""Reads topics as batches and streams."""
