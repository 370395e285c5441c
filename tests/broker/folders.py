"""Data folders as accidents leave them."""

import shutil
from dataclasses import replace


def killed(config, name="killed"):
    """Return the settings of a broker on a copy of the folder as it is now: what SIGKILL leaves."""
    left = config.data.with_name(f"{config.data.name}-{name}")
    # A thread may be writing a table: one that is not in place yet counts for nothing, and may be gone when copied.
    shutil.copytree(config.data, left, ignore=shutil.ignore_patterns("*.tmp"))
    return moved_to(config, left)


def moved_to(config, data):
    return replace(config, data=data, store=replace(config.store, root=data))


def without_end(config, log_offset):
    """Take what lies behind from the log, as a power cut may."""
    log = min((config.data / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(log_offset)
        file.write(bytes(1_000))
    (config.data / "abort").write_text("1 another boot\n")
