"""Three kills of a real process under load; `make kill` has fifty."""

from __future__ import annotations

from pathlib import Path

import pytest

from .run import kill_again_and_again


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["", "flushDiskType=SYNC_FLUSH\n"], ids=["asynchronous", "synchronous"])
async def test_every_confirmed_message_is_consumed_after_three_kills(tmp_path: Path, settings: str) -> None:
    counts = await kill_again_and_again(tmp_path, 3, 1, settings=settings)
    assert not counts.missing, str(counts)
    assert len(counts.confirmed) > 100, str(counts)
