"""Compiled parts of older sources, as after a `git pull`, are not used: plain Python runs and says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pyromq
from pyromq import speedups

PACKAGE = Path(pyromq.__file__).parent

pytestmark = pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not active")


@pytest.fixture
def checkout(tmp_path):
    """A copy of the package, as compiled in a checkout; what this test does not change is linked."""
    copy = tmp_path / "pyromq"
    for folder in (PACKAGE, PACKAGE / "speedups", PACKAGE / "speedups/c"):
        target = copy / folder.relative_to(PACKAGE)
        target.mkdir()
        for path in folder.iterdir():
            if path.name not in ("speedups", "c", "__pycache__"):
                (target / path.name).symlink_to(path)
    own = copy / "speedups/compiled_from.py"
    own.unlink()
    own.write_text((PACKAGE / "speedups/compiled_from.py").read_text())
    start(tmp_path, "from pyromq.speedups import compiled_from; compiled_from.note()", PYROMQ_PURE="1")
    return copy


def start(folder, code="from pyromq import speedups; print(speedups.hot_path)", **environment):
    environment = os.environ | {"PYTHONPATH": str(folder)} | environment
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


def change(source):
    content = source.read_bytes()
    source.unlink()
    source.write_bytes(content + b"\n")


def test_parts_of_the_present_sources_run(checkout):
    done = start(checkout.parent)
    assert (done.stdout, done.stderr) == ("compiled\n", "")


@pytest.mark.parametrize("source", ["sends.pyx", "constants.pxd", "c/kernels.h"])
def test_after_a_change_of_a_source_plain_python_runs_and_names_the_command(checkout, source):
    change(checkout / "speedups" / source)
    done = start(checkout.parent)
    name = source.rpartition("/")[2]
    expected = f"plain Python, the compiled code is older than its sources ({name}); run: make install\n"
    assert done.stdout == expected
    assert "run: make install" in done.stderr


def test_a_source_that_came_or_went_counts_as_well(checkout):
    (checkout / "speedups/timed.pxd").unlink()
    (checkout / "speedups/new.pyx").write_text("")
    assert "(new.pyx, timed.pxd)" in start(checkout.parent).stdout


def test_who_chose_plain_python_is_not_warned(checkout):
    change(checkout / "speedups/sends.pyx")
    done = start(checkout.parent, PYROMQ_PURE="1")
    assert (done.stdout, done.stderr) == ("plain Python, chosen by PYROMQ_PURE\n", "")


def test_a_wheel_has_no_note_and_is_never_stale(checkout):
    (checkout / "speedups/compiled-from").unlink()
    change(checkout / "speedups/sends.pyx")
    assert start(checkout.parent).stdout == "compiled\n"
