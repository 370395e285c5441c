"""The command line `pyromq`."""
