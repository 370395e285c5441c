"""Reads and writes in a namespace, by the tasks that Spark runs: rows have the application's names, brokers theirs."""

import pytest

pytest.importorskip("pyarrow")

from pyromq import Message, ProducerConfig
from pyromq.spark.given_options import read_options, sink_options
from pyromq.spark.options import BATCH
from pyromq.spark.read.plan import QueueRange
from pyromq.spark.read.range_reader import client_of, read_ranges
from pyromq.spark.write.writer import sink_client
from pyromq.testing import BlockingCluster


def test_topics_of_rows_are_the_applications():
    with BlockingCluster() as cluster:
        common = {"namespace": "shop", "namesrvAddr": cluster.namesrv}
        producer = cluster.producer("p", config=ProducerConfig(namespace="shop"))
        queue = producer.send(Message("orders", b"1"), ordering_key="k").queue
        sink = sink_client(sink_options({"topic": "orders", **common}))
        with sink.attempt("t") as attempt:
            attempt.send([Message("orders", b"2"), Message("orders", b"3")], queue=queue)
        outcome = sink.commit("t", [attempt.result])
        while not outcome.visible:
            cluster.advance(0.1)
            outcome = sink.commit("t", [attempt.result])

        options = read_options({"subscribe": "orders", **common}, BATCH)
        assert client_of(options).bounds(["orders"])[queue] == (0, 3)
        batches = read_ranges(options, ["topic", "body"], [QueueRange(queue, 0, 3)])
        rows = [(row["topic"], row["body"]) for batch in batches for row in batch.to_pylist()]
        assert rows == [("orders", b"1"), ("orders", b"2"), ("orders", b"3")]
        assert "orders" not in cluster.admin().topics()
