"""docs/json.md: its examples are run as they stand there, against a cluster."""

import asyncio
import re
from pathlib import Path

from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters
from pyromq.errors import TopicNotFound
from pyromq.testing import BlockingCluster

PAGE = Path(__file__).parents[1] / "docs" / "json.md"


async def dead_letters(group, namesrv):
    """Wait for some; return their reasons."""
    async with AsyncDeadLetters(namesrv) as letters, asyncio.timeout(60):
        while True:
            try:
                if found := [letter.reason async for letter in letters.letters(group)]:
                    return found
            except TopicNotFound:  # nothing has failed yet
                pass
            await asyncio.sleep(0.01)


def test_the_examples_bill_one_order_and_bury_the_other(monkeypatch, capsys):
    first, second = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with BlockingCluster() as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        names = {"__name__": "example"}
        exec(first.replace("consumer.run()", "consumer.start()"), names)
        (reason,) = asyncio.run(dead_letters("billing", cluster.namesrv))
        exec(second, names)
        names["consumer"].close()
    assert reason == "GiveUp: the body is no Order: Expected `int`, got `str` - at `$.id`"
    assert capsys.readouterr().out == "1 ['tea']\n"
