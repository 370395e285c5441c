"""The README's examples, run in their order against one cluster: each prints what it says, and nothing of another."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pyromq.testing import BlockingCluster

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# Pages whose types are not checked: pyspark's decorators have none; three frameworks on one page, Django without types.
UNTYPED = {
    "spark.md",
    "spark-reading.md",
    "spark-streams.md",
    "spark-writing.md",
    "spark-jobs.md",
    "spark-recipes.md",
    "web-frameworks.md",
}

EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def test_every_extra_is_in_the_table_and_in_the_bill_of_materials():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    described = set(re.findall(r"^\| `(\w+)` \|", README.read_text(), re.MULTILINE))
    assert described - {"pyromq"} == extras - {"demo", "release", "dev"}
    (listed,) = re.findall(r'^EXTRAS = "(.+)"', (ROOT / "scripts/release_check.py").read_text(), re.MULTILINE)
    assert set(listed.split(",")) == extras - {"release", "dev"}


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


def code_of(page):
    """Return the Python of a page, each line at its place."""
    lines, is_code = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            is_code, line = line == "```python", ""
        lines.append(line if is_code else "")
    return "\n".join(lines) + "\n" if any(lines) else ""


@pytest.mark.slow
def test_examples_of_all_pages_pass_the_strict_type_check(tmp_path):
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"readme_{number}.py").write_text(example)
    for page in (ROOT / "docs").rglob("*.md"):
        if page.name not in UNTYPED and (code := code_of(page)):
            (tmp_path / f"{page.parent.name}_{page.stem}.py".replace("-", "_")).write_text(code)
    options = ["--strict", "--ignore-missing-imports", "--allow-redefinition", "--disable-error-code=no-redef"]
    check = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, tmp_path.iterdir())],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stdout + check.stderr
