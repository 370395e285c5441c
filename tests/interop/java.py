"""The genuine Java programs: built by Maven from `java/`, found as class paths, run with small heaps."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parent / "java"
BUILD_SECONDS = 600
COMMAND_SECONDS = 90
QUIET_LOGBACK = '<configuration><root level="OFF"/></configuration>\n'


class JavaMissing(Exception):
    """Java, Maven or the jars cannot be had here; the text says which."""


def build() -> None:
    """Compile the driver and fetch the genuine jars, once. Raises `JavaMissing` with the reason."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise JavaMissing(f"{tool} is not installed")
    if _is_fresh():
        return
    command = ["mvn", "-q", "-B", "package"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    if done.returncode:
        raise JavaMissing(f"mvn package fails in {PROJECT}:\n{(done.stdout + done.stderr)[-2000:]}")
    _stamp().touch()


def _stamp() -> Path:
    return PROJECT / "servers" / "target" / "built"


def _is_fresh() -> bool:
    sources = [*PROJECT.glob("src/**/*.java"), *PROJECT.glob("**/pom.xml")]
    return _stamp().exists() and _stamp().stat().st_mtime > max(source.stat().st_mtime for source in sources)


def command(home: Path, jars: str, heap: str, main: str) -> list[str]:
    """Return the start of a command line that runs the class `main` with `home` in place of the user's folder."""
    folder = PROJECT / jars / "target"
    return [
        *("java", f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(f"-Duser.home={home}", f"-Drocketmq.home.dir={home}", "-Drocketmq.client.logLevel=ERROR"),
        f"-Dlogback.configurationFile={home / 'conf' / 'logback_tools.xml'}",
        *("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED"),
        *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"),
        *("-cp", f"{folder / 'classes'}:{folder / 'lib'}/*", main),
    ]


def furnish(home: Path) -> Path:
    """Write the logging settings that the genuine programs insist on; return `home`."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    for program in ("broker", "namesrv", "tools"):
        (home / "conf" / f"logback_{program}.xml").write_text(QUIET_LOGBACK)
    return home


class Driver:
    """Runs the Java client, 4.9.8 or 5.3.3, one command a process: `NAME_SERVERS COMMAND ARGUMENT...`."""

    def __init__(self, home: Path, namesrv: str, *, major: int = 4, options: Sequence[str] = ()) -> None:
        self._command = command(furnish(home), f"driver{major}", "192m", "pyromq.interop.Driver")
        self._command[1:1] = options
        self._namesrv = namesrv

    def run(self, *arguments: str | int, lines: Sequence[dict[str, Any]] = ()) -> list[Any]:
        """Return the JSON lines that the command printed. Raises `RuntimeError` with the Java stack trace."""
        done = subprocess.run(
            [*self._command, self._namesrv, *map(str, arguments)],
            input="".join(json.dumps(line) + "\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{arguments} fails in Java:\n{done.stderr[-4000:]}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]
