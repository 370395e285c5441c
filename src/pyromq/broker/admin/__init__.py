"""Answers requests of administrators and their tools: topics, groups, settings, statistics, queries."""
