"""Options of a write: each checked by itself and with the others."""

import re
from pathlib import Path

import pytest
from scripts.documentation.spark_options import documentation_of

from pyromq.errors import UsageError
from pyromq.spark.columns import SINK_COLUMNS
from pyromq.spark.given_options import sink_options
from pyromq.spark.options import BATCH, STREAM
from pyromq.spark.write.sink_options import SinkOptions


def test_names_are_taken_in_any_case_and_values_by_their_units():
    options = sink_options({"TOPIC": "orders", "sendbatchbytes": "512k", "deadlineMs": "5s", "delivery": "exactlyonce"})
    assert (options.topic, options.batch_bytes, options.deadline_ms) == ("orders", 512 << 10, 5000)
    assert options.delivery == "exactlyOnce"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"topic": "no spaces"},
            "option topic is 'no spaces': The specified topic[no spaces] contains illegal characters",
        ),
        ({"delivery": "twice"}, "option delivery is 'twice'; write atLeastOnce or idempotent or exactlyOnce"),
        ({"inflight": "0"}, "option inflight is '0'; write a whole number from 1 to 1024"),
        ({"sendBatchBytes": "1g"}, "option sendBatchBytes is '1g'; write bytes from 1024"),
        ({"maxMessageBytes": "64m"}, "option maxMessageBytes is '64m'; write bytes from 1024 to 15728640"),
        ({"deadlineMs": "soon"}, "option deadlineMs is 'soon'; write 500ms, 5s or 15m"),
        ({"deadlineMs": "0"}, "option deadlineMs is '0'"),
        ({"onTooLarge": "cut"}, "option onTooLarge is 'cut'; write fail or drop or dlq"),
        ({"onTooLarge": "dlq"}, "options onTooLarge=dlq and deadLetterTopic belong together"),
        ({"deadLetterTopic": "d"}, "options onTooLarge=dlq and deadLetterTopic belong together"),
        ({"sendBatchBytes": "2m", "maxMessageBytes": "1m"}, "sendBatchBytes is 2097152, more than maxMessageBytes"),
        ({"waitVisible": "false"}, "option waitVisible is for delivery=exactlyOnce, and delivery is atLeastOnce"),
        ({"ledger": "broker-a"}, "option ledger is for delivery=exactlyOnce, and delivery is atLeastOnce"),
        ({"jobId": "j"}, "option jobId is for delivery=exactlyOnce or idempotent"),
        ({"jobId": "a\nb", "delivery": "idempotent"}, "write 1 to 128 printable characters"),
        ({"group": "a b"}, "option group is 'a b'"),
        ({"namesrvAddr": " "}, "option namesrvAddr is empty"),
        ({"orderBy": "key"}, "option orderBy is 'key'; write queueId or shardingKey"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "only brokers write to this topic"),
        ({"extraColumns": "ignore"}, "option extraColumns is 'ignore'; write fail or properties or drop"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_value(given, text):
    with pytest.raises(UsageError) as caught:
        sink_options(given)
    assert text in str(caught.value)


def test_a_job_id_is_for_a_batch():
    job = {"topic": "orders", "delivery": "exactlyOnce", "jobId": "j"}
    assert sink_options(job, BATCH).job_id == "j"
    with pytest.raises(UsageError, match="option jobId is for a batch, and this is a stream"):
        sink_options(job, STREAM)


def test_the_page_holds_the_table_of_options():
    assert documentation_of(SinkOptions) in (Path(__file__).parents[3] / "docs" / "spark-writing.md").read_text()


def test_the_page_holds_all_columns():
    page = (Path(__file__).parents[3] / "docs" / "spark-writing.md").read_text()
    table = page.partition("| column | type | |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))) == {*SINK_COLUMNS}
