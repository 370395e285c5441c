"""Diagnosis of a cluster, step by step."""
