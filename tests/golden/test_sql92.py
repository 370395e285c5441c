"""SQL92 expressions as the genuine broker judges them.

`sql92/java-4.9.7.jsonl` holds what org.apache.rocketmq.filter of 4.9.7 said: first the properties of messages as
stored, then one expression a line with a `T` or `F` for each message; null where the expression was refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyromq.errors import SubscriptionParseFailed
from pyromq.filter.sql import parse_sql

LINES = [json.loads(line) for line in (Path(__file__).parent / "sql92" / "java-4.9.7.jsonl").read_text().splitlines()]
PROPERTIES = LINES[0]["properties"]
TAKEN = [(line["expression"], line["wanted"]) for line in LINES[1:] if line["wanted"]]
REFUSED = [line["expression"] for line in LINES[1:] if line["wanted"] is None]


def test_expressions_are_judged_as_in_java() -> None:
    for expression, wanted in TAKEN:
        judged = "".join("FT"[parse_sql(expression).accepts_properties(each)] for each in PROPERTIES)
        assert judged == wanted, expression


@pytest.mark.parametrize("expression", REFUSED)
def test_expressions_are_refused_as_in_java(expression: str) -> None:
    with pytest.raises(SubscriptionParseFailed, match=r"^the SQL92 expression .* cannot be used: ."):
        parse_sql(expression)
