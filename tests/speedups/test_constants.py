"""The compiled parts have the formats, names and codes that the Python sources declare."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def written(*changes: str) -> str:
    """Return what would be written, after some lines of Python."""
    lines = ["import sys; sys.path.insert(0, 'scripts')", "import make_constants", *changes]
    lines.append("print(make_constants.written(), end='')")
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True).stdout


def test_constants_of_the_compiled_parts_are_those_of_python():
    found = (ROOT / "src/pyromq/speedups/constants.pxd").read_text()
    assert found == written(), "run scripts/make_constants.py, then compile"


def test_a_change_in_python_changes_the_compiled_constant():
    changed = written(
        "from pyromq import record, message",
        "record.FIELD_AT['flag'] += 4",
        "message.Property.TAGS = 'LABELS'",
    )
    assert "RECORD_FLAG_AT = 0x14\n" in changed
    assert '#define PYROMQ_TAGS "LABELS"\n' in changed
