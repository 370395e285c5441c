"""Two kills of a proxy and its broker under RocketMQ's official Python client; `make kill-proxy` has thirty."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from .run_proxy import kill_again_and_again


@pytest.mark.soak
@pytest.mark.skipif(find_spec("rocketmq") is None, reason="rocketmq-python-client is not installed")
def test_every_confirmed_message_is_received_after_two_kills(tmp_path: Path) -> None:
    for counts in kill_again_and_again(tmp_path, 2, 1).values():
        assert not counts.missing, str(counts)
        assert not counts.after_acknowledgement, str(counts)
        assert len(counts.confirmed) > 20, str(counts)
