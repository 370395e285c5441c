"""The README's examples, run in their order against one cluster: each prints what it says, and nothing of another."""

import re
from pathlib import Path

import pytest

from pyromq.testing import BlockingCluster

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture(scope="module")
def run():
    """Run the example that holds a text."""
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    with BlockingCluster() as cluster:

        def run(text):
            (example,) = (each for each in examples if text in each)
            exec(example.replace("127.0.0.1:9876", cluster.namesrv), {"__name__": "example"})

        yield run


def test_examples_print_their_own_messages(run, capsys):
    def printed(text):
        run(text)
        return re.sub(r"queue \d", "queue N", capsys.readouterr().out).splitlines()

    assert printed("with PullConsumer(") == ["SendStatus.OK queue N of orders at broker-a 0", "0 new b'{\"id\": 1}'"]
    assert printed("timedelta(days=1)") == []
    assert printed("Decision.COMMIT") == []
    assert printed("producer.request(") == ["b'42 for a book'"]
    assert printed("AsyncPullConsumer(") == ["SendStatus.OK queue N of parcels at broker-a 0", "0 None b'2'"]
