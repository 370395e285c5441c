"""The README's examples, run in their order against one cluster: each prints what it says, and nothing of another."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyromq.testing import BlockingCluster

README = Path(__file__).parents[1] / "README.md"


EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def run():
    """Run the example that holds a text."""
    with BlockingCluster() as cluster:

        def run(text):
            (example,) = (each for each in EXAMPLES if text in each)
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


@pytest.mark.slow
def test_examples_pass_the_strict_type_check(tmp_path):
    pages = [tmp_path / f"example_{number}.py" for number in range(len(EXAMPLES))]
    for page, example in zip(pages, EXAMPLES, strict=True):
        page.write_text(example)
    check = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", *map(str, pages)],
        cwd=README.parent,
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stdout + check.stderr
