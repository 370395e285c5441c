"""The genuine Java programs: built by Maven from `java/`, found as class paths, run with small heaps."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.processes import Program

PROJECT = Path(__file__).parents[1] / "java"
BUILD_SECONDS = 600
COMMAND_SECONDS = 90
Line = dict[str, Any]  # what is written to a Java program as JSON
QUIET_LOGBACK = '<configuration><root level="OFF"/></configuration>\n'


# What Maven says of an artifact that it cannot have: unreachable, not there, or not there while told to stay offline.
_ABSENT = re.compile(r"artifact (\S+:\S+) (?:from/to|in|has not been downloaded)\b")
_NO_COMPILER = ("No compiler is provided", "release version 11 not supported", "invalid target release: 11")


class JavaMissing(Exception):
    """Java, Maven or the jars cannot be had here; the text says which."""


def build() -> None:
    """Compile the driver and fetch the genuine jars, once. Without Java, Maven or a network: `JavaMissing`.

    A driver that does not compile is a `RuntimeError`.
    """
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise JavaMissing(f"{tool} is not installed")
    if _is_fresh():
        return
    command = ["mvn", "-q", "-B", "package"]
    # A build is over before Java's second compiler pays: 4 to 5 s of processor time instead of 12.
    environment = {"MAVEN_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **os.environ}
    try:
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JavaMissing(f"Maven could not download everything within {BUILD_SECONDS} s") from error
    if done.returncode:
        raise failure(done.stdout + done.stderr)
    _stamp().touch()


def failure(output: str) -> Exception:
    """Return what the output of a failed build comes down to."""
    if absent := _ABSENT.search(output):
        return JavaMissing(f"Maven cannot download {absent[1]}")
    if any(sign in output for sign in _NO_COMPILER):
        return JavaMissing("there is no Java compiler of version 11 or later")
    return RuntimeError(f"mvn package fails in {PROJECT}:\n{output[-2000:]}")


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

    def run(self, *arguments: str | int, lines: Sequence[Line] = ()) -> list[Any]:
        """Return the JSON lines that the command printed. Raises `RuntimeError` with the Java stack trace."""
        return _run([*self._command, self._namesrv, *map(str, arguments)], lines)

    def start(self, *arguments: str | int) -> Program:
        """Begin a command that goes on; it is ready with the first JSON line that it prints."""
        return Program([*self._command, self._namesrv, *map(str, arguments)], "{", os.environ)


class Tools:
    """Runs RocketMQ's own administration tool 4.9.8, `mqadmin`, any number of commands a process."""

    def __init__(self, home: Path, namesrv: str) -> None:
        self._command = command(furnish(home), "driver4", "192m", "pyromq.interop.Tools")
        self._namesrv = namesrv

    def run(self, commands: Sequence[str]) -> list[str]:
        """Return what each command prints. Raises `RuntimeError` with what the first failing one complains of."""
        results = _run(self._command, [{"arguments": [*each.split(), "-n", self._namesrv]} for each in commands])
        for each, result in zip(commands, results, strict=True):
            if result["complained"]:
                raise RuntimeError(f"{each} fails in Java:\n{result['complained'][:4000]}")
        return [result["printed"] for result in results]


def _run(command: Sequence[str], lines: Sequence[Line]) -> list[Any]:
    done = subprocess.run(
        command,
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[-5:]} fails in Java:\n{done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]
