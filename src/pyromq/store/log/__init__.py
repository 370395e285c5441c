"""The commit log: the records of all topics in order of arrival, in files of equal size."""
