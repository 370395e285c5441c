"""What holds for every test: settings of Hypothesis."""

from hypothesis import settings

# An example may take as long as it takes: a busy machine is not a failure.
settings.register_profile("pyromq", parent=settings.default, deadline=None)
settings.load_profile("pyromq")
