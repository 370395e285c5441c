"""Servers that are away while a sink plans, begins or commits: it waits for them, as long as its options say."""

import threading

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from tests.spark.serving import Served, numbers_seen

from pyromq import Admin
from pyromq.errors import NoNameServer, TopicNotFound
from pyromq.spark.given_options import sink_options
from pyromq.spark.worker_clients import with_retries
from pyromq.spark.write.sink_task import SinkTask, TaskName
from pyromq.spark.write.writer import check_reachable, commit_reports, sink_client


def options_of(namesrv, **given):
    return sink_options({"namesrvAddr": namesrv, "topic": "orders", "delivery": "exactlyOnce"} | given)


def test_an_address_where_nobody_is_is_named_in_the_end():
    options = options_of("127.0.0.1:1", deadlineMs="300ms")
    with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1\b"):
        check_reachable(options, wait_seconds=0)
    with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1\b"):
        with_retries(options, lambda: sink_client(options))


def test_a_name_server_that_does_not_know_a_planned_topic_yet_is_asked_again():
    answers = [TopicNotFound("orders"), ["a queue"]]

    def ask():
        if isinstance(answers[0], TopicNotFound):
            raise answers.pop(0)
        return answers[0]

    with pytest.raises(TopicNotFound):
        with_retries(options_of("127.0.0.1:1"), ask)
    answers.insert(0, TopicNotFound("orders"))
    assert with_retries(options_of("127.0.0.1:1"), ask, planned=True) == ["a queue"]


@pytest.mark.slow
def test_planning_a_task_and_a_commit_wait_for_servers_that_come_back(tmp_path):
    served = Served(tmp_path)
    served.start()
    with Admin(served.namesrv) as admin:
        admin.create_topic("orders", 2)
    options = options_of(served.namesrv)
    batch = pa.RecordBatch.from_pydict({"body": [str(number) for number in range(10)]})

    def over_a_kill(work):
        served.kill()
        started = threading.Thread(target=served.start)
        started.start()
        try:
            return work()
        finally:
            started.join()

    planned = over_a_kill(lambda: check_reachable(options, wait_seconds=20))
    client = sink_client(planned)
    report = over_a_kill(lambda: SinkTask(client, options, TaskName("write", 0)).write([batch]))
    over_a_kill(lambda: commit_reports(planned, [report]))
    assert numbers_seen(served.namesrv, "orders", 10) == list(range(10))
    client.close()
    served.stop()
