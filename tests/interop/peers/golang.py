"""Apache's Go client, built from Go's modules: its last release, and a commit after it that speaks TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODULE = "github.com/apache/rocketmq-client-go/v2"
RELEASE = "v2.1.2"
WITH_TLS = "v2.1.3-0.20251226070945-2173d070fd1b"

_SOURCES = Path(__file__).parent / "go"
_DOWNLOAD_SECONDS = 120
_BUILD_SECONDS = 300
_RUN_SECONDS = 120


class GoMissing(Exception):
    """There is no Go here, or the client's module cannot be had."""


def build(folder: Path, version: str) -> Path:
    """Return the program of `go/main.go` with that version of the client. Raises `GoMissing` saying what lacks."""
    go = shutil.which("go")
    if go is None:
        raise GoMissing("no go in PATH: https://go.dev/dl")
    variant = "tls" if version == WITH_TLS else "plain"
    shutil.copy(_SOURCES / "main.go", folder / "main.go")
    shutil.copy(_SOURCES / f"{variant}.go.txt", folder / f"{variant}.go")
    (folder / "go.mod").write_text(f"module client\n\ngo 1.20\n\nrequire {MODULE} {version}\n")
    try:
        fetched = _run([go, "mod", "tidy"], folder, _DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise GoMissing(f"go does not get {MODULE} {version} within {_DOWNLOAD_SECONDS} s") from error
    if fetched.returncode:
        raise GoMissing(f"go does not get {MODULE} {version}: {fetched.stderr[-500:]}")
    built = _run([go, "build", "-o", "client", "."], folder, _BUILD_SECONDS)
    assert built.returncode == 0, built.stderr
    return folder / "client"


@dataclass(frozen=True, slots=True)
class GoClient:
    """One client program at a name server, with an account or without: its secret is `secret`."""

    program: Path
    namesrv: str
    account: str = ""
    secret: str = ""

    def run(self, verb: str, topic: str, count: int) -> list[str]:
        """Return the lines of output. Raises `RuntimeError` with them, and what it logged, where it failed."""
        environment = {"NAME_SERVER": self.namesrv, "ACCESS_KEY": self.account, "SECRET_KEY": self.secret}
        ran = subprocess.run(
            [self.program, verb, topic, str(count)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RUN_SECONDS,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(ran.stdout + ran.stderr[-2000:])
        return [line for line in ran.stdout.splitlines() if line.startswith(("sent", "body-"))]


def _run(command: list[str], folder: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
