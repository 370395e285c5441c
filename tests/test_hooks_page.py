"""docs/hooks.md: its examples are run as they stand there, one after the other, against one cluster."""

import re
from pathlib import Path

from pyromq.testing import BlockingCluster

PAGE = Path(__file__).parents[1] / "docs" / "hooks.md"


def test_the_examples_time_sends_and_consumption_and_count_requests(capsys):
    names = {"__name__": "example"}
    with BlockingCluster() as cluster:
        for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(example.replace("127.0.0.1:9876", cluster.namesrv), names)
    *timed, traced, counted = re.sub(r"\d+\.\d+ s", "N s", capsys.readouterr().out).splitlines()
    # The listener's thread may print before the thread that gets the send's reply.
    assert sorted(timed) == ["consumed by billing in N s, N s old", "single send to orders: SEND_OK in N s"]
    assert re.fullmatch("[0-9A-F]{32}", traced)
    assert counted == "1 message sent"
