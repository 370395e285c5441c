"""The commit log: all records in order of arrival, in files of equal size."""
