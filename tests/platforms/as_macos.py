"""A plugin of pytest: `python -m pytest -p tests.platforms.as_macos ...` runs tests with the names of macOS."""

from tests.platforms.lane import install

install("darwin")
