"""What holds for every test: settings of Hypothesis, and that Ctrl-C means something."""

import signal

from hypothesis import settings

# An example may take as long as it takes: a busy machine is not a failure.
settings.register_profile("pyromq", parent=settings.default, deadline=None)
settings.load_profile("pyromq")

# A shell's background jobs begin with the signal ignored, and tests press Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
