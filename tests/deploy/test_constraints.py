"""The versions of constraints.txt, with which `make install` works."""

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

OLDEST = "3.11.0"  # Debian 12 has 3.11.2
LINES = Path(__file__).parents[2].joinpath("constraints.txt").read_text().splitlines()
PINS = [line.partition("==")[0] for line in LINES if "==" in line]


def test_pinned_packages_install_on_the_oldest_python():
    refusing = {name: needed for name in PINS if OLDEST not in SpecifierSet(needed := _needed_python(name))}
    assert refusing == {}, "pin an earlier version"


def _needed_python(name: str) -> str:
    try:
        return metadata(name).get("Requires-Python") or ""
    except PackageNotFoundError:  # of another Python or system
        return ""
