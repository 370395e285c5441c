"""Files and commits of archives, without Spark."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from pyromq.errors import BatchDecided, UsageError
from pyromq.spark.archive.archive_files import write_files
from pyromq.spark.archive.tables import Page, check_format, holds_delta, open_table
from pyromq.spark.micro_batch import open_root
from pyromq.spark.read.record_columns import arrow_schema

COLUMNS = ["topic", "brokerName", "queueId", "queueOffset", "body", "storeTimestamp"]
SCHEMA = arrow_schema(COLUMNS)
DAY = datetime(2026, 1, 31, 12, tzinfo=UTC)


def rows(offsets, topic="orders", queue=0, day=DAY):
    table = [
        {
            "topic": topic,
            "brokerName": "broker-a",
            "queueId": queue,
            "queueOffset": offset,
            "body": b"%d" % offset,
            "storeTimestamp": day,
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(table, schema=SCHEMA)


class Archive:
    """An archive in a folder, filled as Spark would."""

    def __init__(self, folder, form):
        self.location, self.form = str(folder / "archive"), form

    def write(self, *batches, batch=0, query="query"):
        table = open_table(self.location, self.form)
        return write_files(open_root(self.location), batches, query=query, batch=batch, hidden=table.hidden)

    def commit(self, files, batch=0, query="query", content=None):
        return open_table(self.location, self.form).commit(query, batch, files, SCHEMA, content=content)

    def offsets(self):
        return sorted(self.table().column("queueOffset").to_pylist())

    def topics(self):
        return sorted(set(self.table().column("topic").to_pylist()))

    def table(self):
        if self.form == "delta":
            deltalake = pytest.importorskip("deltalake")
            return deltalake.DeltaTable(self.location).to_pyarrow_table()
        return ds.dataset(self.location, format="parquet", partitioning="hive").to_table()


@pytest.fixture(params=["parquet", "delta"])
def archive(request, tmp_path):
    if request.param == "delta":
        pytest.importorskip("deltalake")
    return Archive(tmp_path, request.param)


def test_a_committed_batch_is_seen_with_its_rows(archive):
    files = archive.write(rows(range(10)), rows(range(10, 15)))
    assert archive.commit(files)
    assert archive.offsets() == list(range(15))


def test_days_are_those_of_utc_in_a_session_of_another_time_zone(archive):
    evening = rows(range(2), day=datetime(2026, 1, 31, 23, 30, tzinfo=UTC))
    schema = evening.schema.set(5, pa.field("storeTimestamp", pa.timestamp("us", "Asia/Tokyo")))
    files = archive.write(evening.cast(schema))
    assert [file.date for file in files] == ["2026-01-31"]
    assert archive.commit(files)
    assert archive.offsets() == [0, 1]


@pytest.mark.parametrize("column", ["topic", "storeTimestamp"])
def test_a_row_without_its_folder_is_refused(column, tmp_path):
    batch = pa.concat_batches([rows([0]), rows([1], topic="other"), rows([2])])
    places = pa.array([True, True, False])
    values = pc.if_else(places, batch.column(column), None)
    batch = batch.set_column(COLUMNS.index(column), SCHEMA.field(column), values)
    with pytest.raises(UsageError, match=f"an archive needs column {column} in each row, and it is null in 1 row"):
        write_files(open_root(str(tmp_path)), [batch], query="query", batch=0)


@pytest.mark.parametrize("topic", ["%DLQ%face", "%RETRY%billing"])
def test_a_topic_with_percent_signs_is_read_by_its_name(archive, topic):
    archive.commit(archive.write(rows(range(3), topic=topic)))
    assert archive.offsets() == [0, 1, 2]
    assert archive.topics() == [topic]


def test_a_batch_whose_commit_was_cut_is_published_by_the_next_batch(tmp_path):
    archive = Archive(tmp_path, "parquet")
    cut = Page("query", 0, archive.write(rows(range(3))))
    open_table(archive.location, "parquet")._write_page(cut)  # the commit; then a crash, and `describe --reset`
    archive.write(rows(range(50, 53)), batch=1)  # of a batch that was not committed
    archive.commit(archive.write(rows(range(3, 5)), batch=2), batch=2)
    assert archive.offsets() == [0, 1, 2, 3, 4]


def test_a_file_that_the_driver_does_not_find_is_not_committed(archive):
    files = archive.write(rows(range(3)))
    Path(archive.location, files[0].written).unlink()  # or it is on the disk of another machine
    with pytest.raises(UsageError, match=f"{files[0].written}.* a task has written, does not exist .* same folder"):
        archive.commit(files)
    assert archive.commit(archive.write(rows(range(3))))
    assert archive.offsets() == [0, 1, 2]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "_pyromq").write_text("a file")
    with pytest.raises(OSError, match="Cannot create directory"):
        write_files(open_root(str(tmp_path / "archive")), [rows(range(3))], query="query", batch=0)


def test_a_delta_table_is_told_from_parquet(archive):
    assert holds_delta(archive.location) is False
    archive.commit(archive.write(rows(range(10))))
    assert holds_delta(archive.location) is (archive.form == "delta")
    assert holds_delta(f"file://{archive.location}") is (archive.form == "delta")
    assert holds_delta("s3a://lake/archive") is None  # pyarrow says s3://


def test_an_archive_is_not_continued_in_another_format(archive):
    other = {"parquet": "delta", "delta": "parquet"}[archive.form]
    for form in (archive.form, other):
        check_format(archive.location, form)  # an empty folder may become either
    archive.commit(archive.write(rows(range(10))))
    check_format(archive.location, archive.form)
    text = f"has format {archive.form}, and setting format is {other}: write {archive.form}, or name another folder"
    with pytest.raises(UsageError, match=text):
        check_format(archive.location, other)
    check_format("s3a://lake/archive", other)


@pytest.mark.parametrize(
    ("is_delta", "form", "text"),
    [
        (False, "delta", "there is no Delta archive at"),
        (True, "parquet", "is a Delta table; give --format delta"),
    ],
)
def test_an_archive_of_another_format_is_refused(is_delta, form, text, tmp_path):
    pytest.importorskip("pyspark")
    from pyromq.spark.jobs.session import read_archive

    if is_delta:
        (tmp_path / "_delta_log").mkdir()
    with pytest.raises(UsageError, match=text):
        read_archive(None, str(tmp_path), form)


def test_a_repeated_batch_is_there_once(archive):
    archive.commit(archive.write(rows(range(10))))
    assert not archive.commit(archive.write(rows(range(10))))
    archive.commit(archive.write(rows(range(10, 12)), batch=1), batch=1)
    assert archive.offsets() == list(range(12))


def test_other_rows_under_a_committed_batch_fail_by_name(archive):
    for batch, offsets in enumerate([range(4), range(0), range(4, 8)]):
        archive.commit(archive.write(rows(offsets), batch=batch), batch=batch, content=f"content {batch}")
    again = archive.write(rows(range(4)), batch=2)
    assert not archive.commit(again, batch=2, content="content 2")
    for batch in range(3):
        with pytest.raises(BatchDecided, match=f"batch {batch} of query query is decided, with other input"):
            archive.commit(archive.write(rows(range(8, 12)), batch=batch), batch=batch, content="other")
    assert archive.offsets() == list(range(8))


def test_rows_are_counted_where_contents_are_not_known(archive):
    archive.commit(archive.write(rows(range(4))))
    assert not archive.commit(archive.write(rows(range(4))))
    with pytest.raises(BatchDecided, match="batch 0 of query query is decided, with 4 rows, and now has 5"):
        archive.commit(archive.write(rows(range(5))))
    assert not archive.commit(archive.write(rows(range(5))), content="new")  # decided before contents were recorded


def test_two_queries_into_one_archive_do_not_take_each_other_for_repeats(archive):
    archive.commit(archive.write(rows(range(5)), query="one"), query="one")
    archive.commit(archive.write(rows(range(5, 9)), query="two"), query="two")
    assert archive.offsets() == list(range(9))


def test_a_commit_cut_short_is_finished_by_the_next_attempt(tmp_path):
    archive = Archive(tmp_path, "parquet")
    first, second = archive.write(rows(range(5)), rows(range(5), queue=1)), archive.write(rows(range(5, 9)))
    table = open_table(archive.location, "parquet")
    table._write_page(Page("query", 0, first + second))  # and nothing moved yet
    again = archive.write(rows(range(9)), rows(range(5), queue=1))
    assert not archive.commit(again)
    assert archive.offsets() == sorted([*range(9), *range(5)])


def test_files_of_an_attempt_that_failed_are_never_seen(tmp_path):
    archive = Archive(tmp_path, "parquet")
    archive.write(rows(range(3)))
    archive.commit(archive.write(rows(range(3))))
    assert archive.offsets() == [0, 1, 2]
    assert not list((tmp_path / "archive" / "_pyromq" / "new").rglob("*.parquet"))


def test_topics_and_days_have_folders_of_their_own(tmp_path):
    archive = Archive(tmp_path, "parquet")
    next_day = datetime(2026, 2, 1, tzinfo=UTC)
    archive.commit(archive.write(rows([0, 1]), rows([2], day=next_day), rows([0], topic="payments")))
    folders = {
        str(path.parent.relative_to(archive.location)) for path in (tmp_path / "archive").rglob("topic=*/*/*.parquet")
    }
    assert folders == {
        "topic=orders/date=2026-01-31",
        "topic=orders/date=2026-02-01",
        "topic=payments/date=2026-01-31",
    }


def test_the_book_knows_what_is_in_each_file(tmp_path):
    archive = Archive(tmp_path, "parquet")
    archive.commit(archive.write(rows([3, 4]), rows([7], queue=1)))
    (book,) = (tmp_path / "archive" / "_pyromq" / "batches").rglob("*.json")
    page = msgspec.json.decode(book.read_bytes(), type=Page)
    (file,) = page.files
    assert [(span.queue_id, span.first, span.last, span.rows) for span in file.queues] == [(0, 3, 4, 2), (1, 7, 7, 1)]
    assert page.rows == 3


def test_a_batch_without_rows_commits_nothing(archive):
    assert archive.write(rows([])) == []
    assert archive.commit([])


def test_columns_that_an_archive_cannot_be_without_are_named(tmp_path):
    with pytest.raises(UsageError, match="needs column brokerName"):
        Archive(tmp_path, "parquet").write(rows([1]).select(["topic", "body"]))


def test_another_format_is_named(tmp_path):
    with pytest.raises(UsageError, match="'orc' is unknown; write parquet or delta"):
        open_table(str(tmp_path), "orc")


@pytest.mark.parametrize("form", ["parquet", "delta"])
@pytest.mark.parametrize("inner", ["", "/orders"])
def test_a_file_is_no_archive(tmp_path, form, inner):
    if form == "delta":
        pytest.importorskip("deltalake")
    file = tmp_path / "notes.txt"
    file.touch()
    with pytest.raises(UsageError, match=r"notes\.txt.* cannot be opened: .*/notes.txt is a file; name a folder"):
        open_table(f"{file}{inner}", form)
