"""The sources from which the compiled modules of a checkout were compiled.

A build in the checkout notes name and size of each source beside the compiled modules. A wheel has no note, because its
compiled modules always fit its Python modules. Imports nothing of pyromq: `setup.py` runs this file by itself.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
NOTE = FOLDER / "compiled-from"
SOURCES = (".pyx", ".pxd", ".h")


def note() -> None:
    """Note that the compiled modules now come from the present sources."""
    NOTE.write_text("\n".join(sorted(_sources())), encoding="utf-8")


def changed() -> list[str]:
    """Return the names of sources that changed since the note. Reads sizes only: each import of pyromq calls this."""
    try:
        noted = set(NOTE.read_text(encoding="utf-8").splitlines())
    except OSError:  # a wheel, or never compiled here
        return []
    return sorted({line.partition(" ")[0] for line in noted ^ _sources()})


def _sources() -> set[str]:
    found = (path for folder in (FOLDER, FOLDER / "c") for path in folder.iterdir() if path.suffix in SOURCES)
    return {f"{path.name} {path.stat().st_size}" for path in found}
