#!/usr/bin/env python3
"""try_server.py [--plain]: whether this Python's pyromq runs compiled and gets a message through.

With `--plain`, pyromq must run in plain Python. Leaves a folder `data`.
"""

import subprocess
import sys

PYROMQ = (sys.executable, "-m", "pyromq")


def main():
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    server = subprocess.Popen([*PYROMQ, "serve", "--data", "data", *ports], stdout=subprocess.PIPE, text=True)
    try:
        banner = []
        for line in server.stdout:
            banner.append(line)
            if line.startswith("ready in"):
                break
        namesrv = next(line.split()[2] for line in banner if line.startswith("name server"))
        is_compiled = "hot path     compiled\n" in banner
        expect(is_compiled != ("--plain" in sys.argv), "".join(banner))
        run("send", "greetings", "hello", "--namesrv", namesrv)
        got = run("consume", "greetings", "--from", "beginning", "--until", "now", "--namesrv", namesrv)
        expect(got == "hello\n", got)
    finally:
        server.terminate()
    expect(server.wait(20) == 0, f"exit code {server.returncode}")


def run(*command):
    return subprocess.run([*PYROMQ, *command], check=True, capture_output=True, text=True, timeout=30).stdout


def expect(truth, seen):
    if not truth:
        sys.exit(f"not as expected: {seen}")


if __name__ == "__main__":
    main()
