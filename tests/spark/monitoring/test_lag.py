"""What Spark's progress says of lag; without Spark."""

import json

import pytest

from pyromq import Message, Producer
from pyromq.message import MessageQueue
from pyromq.spark.monitoring.lag_file import LagFile
from pyromq.spark.monitoring.query_lag import lag_of, prometheus_text
from pyromq.spark.read.stream_offset import StreamOffset
from pyromq.testing import FakeClock

FIRST, SECOND = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)


def progress(**ends):
    return {
        "id": "1234",
        "name": "archive",
        "batchId": 7,
        "numInputRows": 50,
        "processedRowsPerSecond": 100.0,
        "sources": [
            {name: json.dumps(StreamOffset(positions).as_json()) for name, positions in ends.items()},
            {"endOffset": "3", "latestOffset": None},  # another source's
        ],
    }


def test_lag_is_counted_by_queue_and_in_seconds():
    given = progress(endOffset={FIRST: 5, SECOND: 9}, latestOffset={FIRST: 15, SECOND: 9})
    lag = lag_of(given, now_ms=10_000, store_times=lambda places: dict.fromkeys(places, 7_500))
    assert [(queue.queue, queue.offset, queue.messages, queue.seconds) for queue in lag.queues] == [
        (0, 5, 10, 2.5),
        (1, 9, 0, 0.0),
    ]
    assert lag.line() == "query archive batch 7: 50 rows, 100 a second, 10 messages and 2.5 s behind in orders"
    assert json.loads(lag.as_json())["messages"] == 10
    assert json.loads(lag.as_json())["topics"] == [{"topic": "orders", "messages": 10, "seconds": 2.5}]


def test_a_queue_that_was_never_read_is_behind_by_all_it_has():
    lag = lag_of(progress(endOffset={}, latestOffset={FIRST: 4}), now_ms=0)
    assert lag.messages == 4


def test_prometheus_text_has_a_line_for_each_queue_with_escaped_labels():
    given = progress(endOffset={FIRST: 5}, latestOffset={FIRST: 15}) | {"name": 'a"b'}
    text = prometheus_text([lag_of(given, now_ms=0)])
    assert '\npyromq_spark_lag_messages{query="a\\"b",topic="orders",broker="broker-a",queue="0"} 10\n' in text
    assert "# TYPE pyromq_spark_lag_messages gauge" in text


def test_a_lag_file_is_written_now_and_then_and_at_the_end(tmp_path):
    file, clock = tmp_path / "lag.prom", FakeClock(20_000)
    lag = LagFile(file, "billing", store_times=lambda places: dict.fromkeys(places, 17_000), clock=clock)
    latest = StreamOffset({FIRST: 15})
    marks = '{query="billing",topic="orders",broker="broker-a",queue="0"}'

    lag.note(StreamOffset({FIRST: 5}), latest)
    assert f"\npyromq_spark_lag_messages{marks} 10\n" in file.read_text()
    assert f"\npyromq_spark_lag_seconds{marks} 3.0\n" in file.read_text()
    lag.note(StreamOffset({FIRST: 8}), latest)
    assert " 10\n" in file.read_text()
    lag.note(StreamOffset({FIRST: 15}), latest, last=True)
    assert f"\npyromq_spark_lag_messages{marks} 0\n" in file.read_text()


def test_a_lag_file_that_cannot_be_written_ends_nothing(tmp_path, caplog):
    lag = LagFile(tmp_path / "none" / "lag.prom", "billing", store_times=lambda _: {}, clock=FakeClock())
    lag.note(StreamOffset({FIRST: 5}), StreamOffset({FIRST: 15}))
    assert "the lag cannot be written" in caplog.text


def test_a_listener_asks_brokers_how_old_unread_messages_are(namesrv, tmp_path):
    listening = pytest.importorskip("pyromq.spark.monitoring.lag_listener")
    with Producer("lag-test", namesrv) as producer:
        queue = producer.send(Message("lag-orders", b"1")).queue
    told = []
    listener = listening.LagListener(
        namesrv=namesrv, json_file=tmp_path / "lag.json", prometheus=tmp_path / "lag.prom", tell=told.append
    )
    listener.note(json.dumps(progress(endOffset={queue: 0}, latestOffset={queue: 1})))
    listener.close()
    assert [(lag.messages, 0 <= lag.seconds < 60) for lag in told] == [(1, True)]
    assert json.loads((tmp_path / "lag.json").read_text())[0]["seconds"] == told[0].seconds
    assert f'topic="lag-orders",broker="broker-a",queue="{queue.queue_id}"' in (tmp_path / "lag.prom").read_text()


def test_a_listener_goes_on_without_brokers():
    listening = pytest.importorskip("pyromq.spark.monitoring.lag_listener")
    listener = listening.LagListener(namesrv="127.0.0.1:9")
    listener.note(json.dumps(progress(endOffset={FIRST: 5}, latestOffset={FIRST: 15})))
    assert (listener.lags["archive"].messages, listener.lags["archive"].seconds) == (10, 0.0)
    listener.close()
