"""Marks a test of something that only Linux tells its programs."""

import pytest

from pyromq.platforms import platform

only_linux = pytest.mark.skipif(platform.__name__ != "pyromq.platforms.linux", reason="only Linux tells")
