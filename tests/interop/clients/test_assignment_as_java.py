"""What is recorded of the genuine strategies is what they say today; unit tests compare ours with the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.interop.peers.assigning import GOLDEN, recorded

pytestmark = [pytest.mark.interop, pytest.mark.interop_short]


def test_recorded_shares_are_those_of_the_genuine_client(home: Path) -> None:
    assert recorded(home) == json.loads(GOLDEN.read_text())
