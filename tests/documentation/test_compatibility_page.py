"""The page of request codes names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "compatibility.md"


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"[\w/]+/test_\w+\.py", PAGE.read_text(encoding="utf-8")))
    assert named
    assert [path for path in sorted(named) if not (TESTS / path).exists()] == []
