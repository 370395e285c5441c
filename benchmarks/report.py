"""What benchmark programs print beside their tables: the machine, and how far they are."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path


def print_machine() -> None:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ": ?")
    facts = (
        f"{model.partition(':')[2].strip()}, {os.cpu_count()} cores",
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"commit {commit.stdout.strip() or '?'}",
        f"load before the run {os.getloadavg()[0]:.1f}",  # beside other work the figures mean little
    )
    print("; ".join(facts) + "\n")


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
