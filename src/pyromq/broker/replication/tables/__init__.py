"""Copies a broker's tables (topics, groups, offsets and others) from the master of a replica set to the followers."""
