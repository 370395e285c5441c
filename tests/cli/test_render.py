import json
from datetime import UTC, datetime

from pyromq.cli.render import local_time, permission_text, show_record, show_rows

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)


def test_table_aligns_numbers_right_and_text_left(capsys):
    show_rows([{"name": "a", "count": 7, "free": None}, {"name": "long", "count": 1000, "free": True}], "table")

    assert capsys.readouterr().out.splitlines() == [
        "name  count  free",
        "a         7  -",
        "long   1000  yes",
    ]


def test_table_without_rows_says_so_beside_the_output(capsys):
    show_rows([], "table", empty="no topics")
    shown = capsys.readouterr()

    assert (shown.out, shown.err) == ("", "no topics\n")


def test_json_without_rows_is_an_empty_list(capsys):
    show_rows([], "json")

    assert json.loads(capsys.readouterr().out) == []


def test_record_is_lines_or_an_object(capsys):
    record = {"id": "x", "times": [NOON], "properties": {"a": "b"}, "tags": None}

    show_record(record, "table")
    lines = capsys.readouterr().out.splitlines()
    show_record(record, "json")
    parsed = json.loads(capsys.readouterr().out)

    assert lines == ["id          x", "times       2026-01-31 12:00:00.123", "properties  a=b", "tags        -"]
    assert parsed == record | {"times": ["2026-01-31T12:00:00.123+00:00"]}


def test_absent_times_and_permissions_have_a_text():
    assert local_time(0) is None
    assert [permission_text(bits) for bits in (0, 2, 4, 6)] == ["-", "w", "r", "rw"]
