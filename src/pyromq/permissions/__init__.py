"""Accounts and their rights, as RocketMQ 4.9 stores them in files.

Used by brokers, and by name servers with access control.
"""
