"""The commands of `pyromq`, one module each."""
