"""The seed of the day: random schedules in the ordinary tests are others every day, and the same all day long."""

from __future__ import annotations

import datetime
import os

VARIABLE = "PYROMQ_TEST_SEED"


def seed_of_the_day() -> int:
    """Return the number that PYROMQ_TEST_SEED says, else today's: 20261122 on the 22nd of November 2026."""
    return int(os.environ.get(VARIABLE) or f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")
