"""A short form of `make platforms`: tests of store, net and clients in a process that has only macOS's names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHORT = (
    "tests/store/test_directory.py",
    "tests/store/log/test_preallocation.py",
    "tests/net/test_server.py",
    "tests/client/blocking/test_clients.py",
)


@pytest.mark.slow
def test_macos():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [str(ROOT / "scripts/names-of"), "darwin", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, *SHORT], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
