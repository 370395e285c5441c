"""Python runs this at its start in a process of a lane, see `scripts/names-of`."""

import os

from tests.platforms.lane import LOOP, PLATFORM, install

install(os.environ[PLATFORM], proactor=os.environ.get(LOOP) == "proactor")
