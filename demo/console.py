"""`make console`: a cluster full of flights, groups that are behind, and the console before it, until Ctrl-C."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile

from demo import QUEUES, TOPIC, load_flights, send

from pyromq import Admin


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="pyromq-console-") as folder:
        command = [sys.executable, "-m", "pyromq", "serve", "--data", folder, "--console"]
        process = subprocess.Popen(
            [*command, "--namesrv-port", "0", "--broker-port", "0", "--console-port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        found = {}
        for line in process.stdout:
            words = line.split()
            found[words[0]] = words[-1]
            if words[0] == "console":
                break
        try:
            fill(found["name"])
            print(f"\nthe console is at {found['console']} - Ctrl-C ends it", flush=True)
            process.wait()
        except KeyboardInterrupt:
            pass
        finally:
            process.terminate()
            process.wait()


def fill(namesrv: str) -> None:
    """Send the flights, and let one group be far behind, another done."""
    with Admin(namesrv) as admin:
        admin.create_topic(TOPIC, QUEUES)
        asyncio.run(send(namesrv, load_flights()))
        for status in admin.topic_status(TOPIC):
            admin.commit_offset("punctuality", status.queue, status.max_offset // 3)
            admin.commit_offset("archive", status.queue, status.max_offset)


if __name__ == "__main__":
    main()
