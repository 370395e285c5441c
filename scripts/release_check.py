#!/usr/bin/env python3
"""release_check.py [PYTHON...]: everything that must hold before a release, and its files in dist/.

The version is the same everywhere, and the names that it promises to keep are recorded. The archive of sources builds
without network, twice to the same bytes. Wheels are built and tried for each Python, and a wheel of plain Python for
the rest. Their descriptions are valid. A bill of materials (CycloneDX) lists what an installation with all extras
brings, and every licence is a permissive one.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import licences
import make_wheels
from make_wheels import DIST, ROOT, call, pip

EXTRAS = "cli,console,metrics,failover,grpc,celery,codecs,otel,lake,spark,demo"


def main(pythons):
    version = one_version()
    call(sys.executable, "-m", "tests.documentation.promised_names", "--check", cwd=ROOT)
    say("names that this version promises to keep: recorded")
    make_wheels.main(pythons)
    (archive,) = DIST.glob("*.tar.gz")
    builds_alike_without_network(archive)
    plain = plain_wheel(archive)
    make_wheels.try_out(plain, sys.executable, "--plain")
    say(f"{plain.name}: installs without a compiler, takes and gives a message")
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "tools/bin/python"
        call(sys.executable, "-m", "venv", "--without-pip", tools.parents[1])
        pip(tools, "install", f"{plain}[release]")
        call(tools, "-m", "twine", "check", "--strict", *sorted(DIST.glob("*.whl")), archive)
        say("descriptions: valid")
        bill = DIST / f"pyromq-{version}.cdx.json"
        users = Path(folder) / "users/bin/python"
        call(sys.executable, "-m", "venv", "--without-pip", users.parents[1])
        pip(users, "install", f"{plain}[{EXTRAS}]")
        call(tools, "-m", "cyclonedx_py", "environment", users, "--output-reproducible", "-o", bill)
        check_licences(licences.declared(users))


def one_version():
    """Return the version that project, package and changes name. A tag of this commit must name it, too."""
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    named = {
        "pyproject.toml": found(r'^version = "(.+)"', ROOT / "pyproject.toml"),
        "src/pyromq/__init__.py": found(r'^__version__ = "(.+)"', ROOT / "src/pyromq/__init__.py"),
        "CHANGELOG.md": found(r"^## (\S+)", ROOT / "CHANGELOG.md"),
        **{f"tag {tag}": tag[1:] for tag in tags.stdout.split() if tag.startswith("v")},
    }
    if len(set(named.values())) != 1:
        sys.exit("versions differ: " + ", ".join(f"{place} {version}" for place, version in named.items()))
    version = named["pyproject.toml"]
    say(f"version {version}: the same everywhere")
    return version


def found(pattern, path):
    match = re.search(pattern, path.read_text(), re.MULTILINE)
    return match[1] if match else sys.exit(f"{path.relative_to(ROOT)} names no version")


def builds_alike_without_network(archive):
    """Build the archive of sources, and a wheel of it, twice, where no package can be fetched; compare the bytes."""
    no_network = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    code = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    sums = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            call("tar", "-xf", archive, "-C", folder)
            (source,) = Path(folder).iterdir()
            out = Path(folder, "out")
            make_wheels.archive_of_sources(source, out)
            call(sys.executable, "-c", code, out, cwd=source, **make_wheels.dated(), **no_network)
            sums.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()})
    if sums[0] != sums[1]:
        sys.exit(f"two builds differ: {', '.join(name for name in sums[0] if sums[0][name] != sums[1].get(name))}")
    say("sources: build without network, twice to the same bytes")


def plain_wheel(archive):
    with tempfile.TemporaryDirectory() as folder:
        pip(
            sys.executable,
            "wheel",
            "--no-deps",
            "--no-cache-dir",
            "--wheel-dir",
            folder,
            archive,
            PYROMQ_PURE="1",
            **make_wheels.dated(),
        )
        (wheel,) = Path(folder).iterdir()
        if not wheel.name.endswith("-py3-none-any.whl"):
            sys.exit(f"{wheel.name} is not a wheel of plain Python")
        return wheel.rename(DIST / wheel.name)


def check_licences(packages):
    if unclear := licences.unclear(packages):
        sys.exit("licences that a person must read:\n" + "\n".join(unclear))
    say(f"licences: {len(packages)} packages with all extras, all permissive")


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    main(sys.argv[1:])
