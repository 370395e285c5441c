"""What the console shows of a genuine broker that only brokers of ours tell otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.peers.servers import GenuineServers

from pyromq import AsyncAdmin, AsyncProducer, Message

pytest.importorskip("starlette", reason="the console needs its extra: pip install 'pyromq[console]'")

from tests.console.conftest import browsing

from pyromq.console.console_config import ConsoleConfig

pytestmark = pytest.mark.interop


async def test_delay_levels_of_a_genuine_broker_are_shown(genuine: GenuineServers, topic: str, tmp_path: Path) -> None:
    async with AsyncProducer(f"sends-{topic}", genuine.namesrv) as producer:
        await producer.send(Message(topic, b"in two hours", keys=f"late-{topic}", delay_level=18))
    async with AsyncAdmin(genuine.namesrv) as admin:
        (level,) = [each for each in await admin.delay_levels.all() if each.level == 18]
        found = await admin.delay_levels.waiting(18)
    assert (level.delay_ms, level.waiting) == (7_200_000, len(found))
    assert level.next_due_ms == found[0].due_ms
    assert (found[-1].topic, found[-1].keys) == (topic, [f"late-{topic}"])
    assert found[-1].due_ms - found[-1].sent_ms == 7_200_000

    async with browsing(ConsoleConfig(genuine.namesrv, tmp_path)) as browser:
        page = await browser.get("/delayed")
        assert "(level 18)" in page and "does not count messages that wait" in page
        assert f"late-{topic}" in await browser.get("/delayed-levels/18")


async def test_the_page_of_transactions_says_what_a_genuine_broker_does_not_list(
    genuine: GenuineServers, tmp_path: Path
) -> None:
    async with browsing(ConsoleConfig(genuine.namesrv, tmp_path)) as browser:
        page = await browser.get("/transactions")
    assert "does not list half messages" in page and "has no batch transactions" in page
