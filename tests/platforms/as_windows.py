"""A plugin of pytest: `python -m pytest -p tests.platforms.as_windows ...` runs clients with Windows's names."""

from tests.platforms.lane import install

install("win32")
