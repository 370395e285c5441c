"""A shell in a folder of its own, as a reader has one: lines are typed, files saved, ids copied from the screen.

Usual ports, addresses of machines and folders of the system stand for what this test has to itself.
Knows nothing about pages.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from itertools import takewhile
from pathlib import Path

from pytest import MonkeyPatch
from tests.processes import Program, free_port
from tests.waiting import PATIENCE_SECONDS

from pyromq.cli.main import run

ROOT = Path(__file__).parents[2]
PORTS = ("9876", "10911", "8876", "9557", "8080")
# Stay, once they have said this.
SERVERS = {
    r"pyromq serve": "ready in",
    r"pyromq console(?! account)": "console",
    r"pyromq consume \w+ --group": "a book",
    r"python -m order_service": "tried again after ten seconds",
    r"python3 -m http.server": "Serving HTTP",
}
# What a reader copies from what was printed before, instead of the word in capital letters.
COPIED = {"MESSAGE_ID": r"\b[0-9A-F]{32}\b", "CLIENT": r"\S+@\S+"}


class Terminal:
    """Types lines; `screen` is all that was printed."""

    def __init__(self, folder):
        self._root = self._folder = folder
        self._ports = {port: str(free_port()) for port in PORTS}
        self._servers = {}
        self.screen = ""
        (folder / "bin").mkdir()
        for name, arguments in {"python": "", "python3": "", "pyromq": "-m pyromq"}.items():
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            program.chmod(0o755)
        self._environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TZ": "UTC",
            "PYTHONUNBUFFERED": "1",
            "NAMESRV_ADDR": f"127.0.0.1:{self._ports['9876']}",
        }
        if compiled := os.environ.get("PYTHONPYCACHEPREFIX"):  # otherwise each line would compile what it imports
            self._environment["PYTHONPYCACHEPREFIX"] = compiled
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("*.egg-info", "*.db*"))

    def own(self, text):
        """Return the text with a port of this terminal's for each usual one; machines are addresses of loopback."""
        text = re.sub(r"\b\d{4,5}\b", lambda port: self._ports.get(port[0], port[0]), text)
        text = re.sub(r"\b10\.0\.0\.(?=\d)", "127.0.0.", text)
        return re.sub(r"(?<![\w./-])/(?=(data|etc|var)/)", f"{self._root}/", text)

    def filled_in(self, line):
        """Return the line with what its reader copies from the screen: the last that is there."""
        for word, pattern in COPIED.items():
            if word in line:
                found = re.findall(pattern, self.screen)
                assert found, f"{line}: nothing was printed that {word} could be"
                line = line.replace(word, found[-1])
        return line

    def save(self, path, text):
        file = self._folder / self.own(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(self.own(text) + "\n")

    def type(self, line):
        """Run a line; return what it prints. A server is there when it is ready, in place of one begun before."""
        line = self.own(line)
        ready = next((said for server, said in SERVERS.items() if re.match(server, line)), None)
        if ready:
            self._serve([word for word in shlex.split(line, comments=True) if word != "&"], ready)
            return ""
        if line.startswith("cd "):
            self._folder /= line[3:]
            return ""
        if line.startswith("export "):
            name, _, value = shlex.split(line, comments=True)[1].partition("=")
            self._environment[name] = value
            return ""
        arguments = _arguments(line)
        code, out, errors = self._run_in_shell(line) if arguments is None else self._run_here(arguments)
        assert code == 0, f"{line}\n{out}{errors}"
        self.screen += out
        return out

    def close(self):
        for server in self._servers.values():
            server.stop()

    def _run_in_shell(self, line):
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        return done.returncode, done.stdout, done.stderr

    def _run_here(self, arguments):
        """Run a command of pyromq in this process, which saves 0.2 s of processor time for each line."""
        out, errors = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(errors):
            patched.chdir(self._folder)
            patched.setattr(os, "environ", self._environment)
            code = run(arguments)
        return code, *(stream.buffer.getvalue().decode() for stream in (out, errors))

    def _serve(self, arguments, ready):
        name = " ".join(takewhile(lambda word: not word.startswith("-"), arguments))
        if "--host" in arguments:  # another machine
            name += arguments[arguments.index("--host") + 1]
        if name in self._servers:
            self._servers.pop(name).stop()
        if arguments[:2] == ["pyromq", "serve"]:
            roles = [role for role in ("namesrv", "broker") if role in arguments] or ["namesrv", "broker"]
            usual = {"namesrv": "9876", "broker": "10911"}
            arguments += [word for role in roles for word in (f"--{role}-port", self._ports[usual[role]])]
        if "console" in arguments:
            arguments += ["--port", self._ports["8876"]]
        if "--console" in arguments:
            arguments += ["--console-port", self._ports["8876"]]
        server = Program(["env", "-C", self._folder, *arguments], ready, self._environment)
        self._servers[name] = server
        server.wait_until_ready()


def _arguments(line):
    """Return the arguments of a line that is one command of pyromq, or None for a line that needs a shell."""
    words = shlex.split(re.split(r"\s#", line)[0])  # a client id has a number sign, too
    if words[0] != "pyromq" or re.search(r"[$`*|&<>;]", re.sub(r"'[^']*'", "", line)):
        return None
    return words[1:]
