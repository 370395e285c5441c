"""The differences between operating systems: one module for each, with functions of the same names.

`platform` is the module of this machine. Code outside this package uses only names that CPython's documentation grants
to Linux and macOS, and in clients, command line and console to Windows too. `tests/platforms` checks this.

`windows` has what clients need. `platform.MISSING_FOR_SERVERS` says why brokers and name servers do not run there.
"""

from __future__ import annotations

import sys

if sys.platform == "darwin":
    from pyromq.platforms import macos as platform
elif sys.platform == "win32":
    from pyromq.platforms import windows as platform
else:
    from pyromq.platforms import linux as platform

__all__ = ["platform"]
