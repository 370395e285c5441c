"""examples/order-service has tests of its own; they are run as its users run them."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2] / "examples" / "order-service"


@pytest.mark.slow
def test_the_tutorials_project_passes_its_tests(tmp_path):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-c",
        PROJECT / "pyproject.toml",
    ]
    told = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=200)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "4 passed" in told.stdout
