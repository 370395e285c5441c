"""One server program in a process of its own: started, seen to be ready, stopped or killed by its id.

Knows nothing about RocketMQ.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

READY_SECONDS = 60.0  # a Java broker on a busy machine of two cores
STOP_SECONDS = 60.0
PORTS = 20_000, 32_000  # Linux gives clients those from 32768 on


class Program:
    """A process that tells by one line of output, holding `ready`, that it serves. `group`: its group id."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        ready: str,
        environment: Mapping[str, str],
        *,
        group: int | None = None,
    ) -> None:
        self._ready = ready
        self._serving = False
        self._told = threading.Event()
        self.output: list[str] = []
        self.process = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            group=group,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        """Return when the ready line came. Raises `RuntimeError` with the output if it ends or is silent."""
        if not self._told.wait(READY_SECONDS) or not self._serving:
            self.kill()
            raise RuntimeError(f"{self.process.args} did not get ready:\n" + "".join(self.output[-50:]))

    def stop(self) -> int:
        """End the process as an operator does; return its exit code (below 0: killed because it did not end)."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self._reap()

    def kill(self) -> None:
        """End the process as a crash does: nothing is flushed, no file is closed in order."""
        self.process.kill()
        self._reap()

    def _reap(self) -> int:
        code = self.process.wait()
        self._reader.join()
        if self.process.stdout:
            self.process.stdout.close()
        return code

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output.append(line)
            if self._ready in line:
                self._serving = True
                self._told.set()
        self._told.set()


def free_port(*distances: int) -> int:
    """Return a port that is free now, as are those at `distances` from it, and that no client is given by the kernel.

    Servers come back to their ports: a connection made meanwhile must not have one of them.
    """
    while True:
        port = random.randrange(*PORTS)
        if all(_is_free(port + distance) for distance in (0, *distances)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
