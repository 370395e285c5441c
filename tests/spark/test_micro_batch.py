"""What a micro-batch holds, told from checkpoints as Spark writes them; without Spark."""

import json

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

from pyromq.errors import BatchDecided
from pyromq.spark.micro_batch import DecidedWrite, StreamBatch, check_repeated, planned_batch

QUERY = "4c2c8a2e"


@pytest.fixture
def checkpoint(tmp_path):
    """The checkpoint of a query over a topic and a folder, with batches 0 and 1 planned."""
    for name in ("offsets", "sources/0", "sources/1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    plan(tmp_path, 0, '{"orders": 5}', '{"logOffset":0}')
    find(tmp_path, 0, "a.txt")
    plan(tmp_path, 1, '{"orders": 9}', '{"logOffset":1}')
    find(tmp_path, 1, "b.txt", "c.txt")
    return tmp_path


def plan(folder, batch, *ends, settings='{"batchTimestampMs":1}', version="v1"):
    (folder / "offsets" / str(batch)).write_text("\n".join([version, settings, *ends]))


def find(folder, step, *files, name=None):
    found = [json.dumps({"path": f"file:///{file}", "timestamp": 7, "batchId": step}) for file in files]
    (folder / "sources" / "1" / (name or str(step))).write_text("\n".join(["v1", *found]))


def content(folder, batch=1, query=QUERY):
    return StreamBatch(query, batch).content(str(folder), None)


def test_a_repeated_batch_has_the_same_content(checkpoint):
    before = content(checkpoint)
    plan(checkpoint, 1, '{"orders": 9}', '{"logOffset":1}', settings='{"batchTimestampMs":2}')
    find(checkpoint, 1, "c.txt", "b.txt")
    find(checkpoint, 2, "d.txt")
    assert content(checkpoint) == before
    path = checkpoint / "sources" / "1"
    earlier = (path / "0").read_text().splitlines()[1:]
    (path / "1.compact").write_text("\n".join([*(path / "1").read_text().splitlines(), *earlier]))  # of all steps
    (path / "1").unlink()  # as Spark does
    assert content(checkpoint) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: plan(folder, 1, '{"orders": 8}', '{"logOffset":1}'),
        lambda folder: plan(folder, 0, '{"orders": 4}', '{"logOffset":0}'),
        lambda folder: find(folder, 1, "b.txt", "d.txt"),
    ],
    ids=["another end", "another beginning", "other files in the same step"],
)
def test_other_input_is_another_content(checkpoint, change):
    before = content(checkpoint)
    change(checkpoint)
    assert content(checkpoint) != before


def test_the_second_form_of_offsets_names_its_sources(checkpoint):
    plan(checkpoint, 1, '0:{"orders": 9}', '1:{"logOffset":1}', version="v2")
    before = content(checkpoint)
    find(checkpoint, 1, "b.txt")
    assert content(checkpoint) != before


def test_the_batch_that_was_planned_last(checkpoint):
    assert planned_batch(f"file:{checkpoint}") == (1, content(checkpoint))


@pytest.mark.parametrize("folder", ["", "nowhere", "s4://bucket/folder"])
def test_what_cannot_be_read_is_not_known(checkpoint, folder):
    assert planned_batch(folder or None) is None
    assert content(folder) is None
    assert content(checkpoint, query="another") is None
    assert content(checkpoint, batch=7) is None


def test_a_query_without_a_place_of_its_own_has_it_below_the_sessions(checkpoint):
    batch = StreamBatch(QUERY, 1, str(checkpoint.parent))
    assert batch.content(None, checkpoint.name) == content(checkpoint)
    assert batch.content(None, None) is None


def test_a_repeated_write_must_have_the_decided_input():
    decided = DecidedWrite("w", "a", 3)
    check_repeated(decided, content="a", rows=4)
    with pytest.raises(BatchDecided, match="w is decided, with other input"):
        check_repeated(decided, content="b", rows=3)
    with pytest.raises(BatchDecided, match="with 3 rows, and now has 4"):
        check_repeated(decided, content=None, rows=4)
