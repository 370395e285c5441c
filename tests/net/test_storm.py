"""The storm in its short form; `python -m tests.net.storm` is the long one."""

import pytest
from tests.net.storm import storm
from tests.seed import seed_of_the_day


@pytest.mark.slow
def test_nothing_is_left_of_a_storm(tmp_path):
    outcome = storm(tmp_path, frames=10_000, connections=500, seed=seed_of_the_day())
    assert outcome.tracebacks == 0
    assert outcome.memory_mb < 20
    assert outcome.log_kb < 100
