"""Marks tests of something that other systems do not tell their programs."""

import os

import pytest

from pyromq.platforms import platform

only_linux = pytest.mark.skipif(platform.__name__ != "pyromq.platforms.linux", reason="only Linux tells")
not_windows = pytest.mark.skipif(
    os.environ.get("PYROMQ_TEST_PLATFORM") == "win32", reason="Windows does not tell, or cannot fork"
)
