"""Batch transactions: many messages decided by one record. Ours."""
