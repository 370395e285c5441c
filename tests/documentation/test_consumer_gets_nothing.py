"""docs/how-to/my-consumer-gets-nothing.md: a real broker shows for each cause what the page says."""

import logging
import re
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.waiting import wait_until

from pyromq import ConsumeFrom, Consumer, ConsumerConfig, GroupConfig, Message
from pyromq.cli.main import run
from pyromq.clock import SystemClock
from pyromq.testing import BlockingCluster

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "my-consumer-gets-nothing.md").read_text()


@pytest.fixture(scope="module")
def cluster():
    with BlockingCluster(clock=SystemClock()) as cluster:
        yield cluster


class Lab:
    """One topic and one group of a test: sends, starts members, and types the page's commands."""

    def __init__(self, cluster, stack, capsys, name):
        self._stack, self._capsys, self.admin = stack, capsys, cluster.admin()
        self.namesrv, self.topic, self.group = cluster.namesrv, f"topic-{name}", f"group-{name}"
        self.producer = cluster.producer()

    def send(self, body=b"x", **fields):
        return self.producer.send(Message(self.topic, body, **fields))

    def member(self, listener=None, *, topic=None, tags="*", **settings):
        """Start a member of the group; return what its listener got."""
        got = []
        config = ConsumerConfig(**{"consume_from": ConsumeFrom.FIRST, **settings})
        consumer = Consumer(self.group, self.namesrv, config=config)
        consumer.subscribe(topic or self.topic, listener or got.extend, tags=tags)
        self._stack.enter_context(consumer)
        return got

    def type(self, *words, **own):
        """Run a command that is on the page, with own names in place of the page's, and return what it prints."""
        line = " ".join(["pyromq", *words])
        assert line in PAGE, line
        own |= {"orders": self.topic, "billing": self.group}
        self._capsys.readouterr()
        run([*(own.get(word, word) for word in words), "-n", self.namesrv])
        printed = self._capsys.readouterr()
        return printed.out + printed.err

    def rows(self, *words):
        """Run a command and return the rows of its last table, each as a dict."""
        lines = self.type(*words).splitlines()
        head = max((n for n, line in enumerate(lines) if re.match(r"(client_id|topic)\s", line)), default=0)
        names = lines[head].split() if lines else []
        return [dict(zip(names, re.split(r"\s{2,}", line), strict=False)) for line in lines[head + 1 :]]


@pytest.fixture
def lab(cluster, capsys, request):
    with ExitStack() as stack:
        name = re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))[:40]
        yield Lab(cluster, stack, capsys, name)


def said(text, printed):
    """The page says this, and so does the command."""
    assert text in PAGE
    assert text.replace("orders", "").replace("billing", "").split("...")[-1].strip() in printed


def test_no_name_server_answers(lab):
    lab.namesrv = "127.0.0.1:1"
    printed = lab.type("doctor", "orders")
    assert "name server 127.0.0.1:1: does not answer" in printed
    assert "`name server ...: does not answer`" in PAGE


def test_the_topic_does_not_exist(lab, caplog):
    with caplog.at_level(logging.WARNING):
        lab.member()
        wait_until(lambda: "waiting for topics that do not exist yet:" in caplog.text)
    assert f"topic {lab.topic}: does not exist yet" in lab.type("doctor", "orders")


def test_the_topic_cannot_be_read(lab):
    lab.send()
    lab.admin.alter_topic(lab.topic, permission="w")
    got = lab.member()
    said("has no queue that can be read", lab.type("doctor", "orders"))
    assert got == []
    lab.type("topic", "alter", "orders", "--permission", "rw")
    wait_until(lambda: got)


def test_no_consumer_has_started(lab):
    lab.send()
    assert f"group {lab.group} does not exist" in lab.type("group", "show", "billing")


def test_the_program_has_ended(lab):
    lab.send()
    with Consumer(lab.group, lab.namesrv) as consumer:
        consumer.subscribe(lab.topic, print)
    lab.admin.create_group(GroupConfig(lab.group))
    assert re.search(r"online +0", lab.type("group", "show", "billing"))


def test_the_group_is_disabled(lab, caplog):
    lab.send()
    lab.admin.create_group(GroupConfig(lab.group, consume_enabled=False))
    with caplog.at_level(logging.WARNING):
        got = lab.member()
        wait_until(lambda: "no permission" in caplog.text)
    assert got == []
    lab.type("group", "alter", "billing", "--enabled")
    wait_until(lambda: got)


def test_members_subscribe_differently(lab):
    lab.send()
    lab.producer.send(Message(f"{lab.topic}-other", b"x"))
    lab.member(instance="a")
    lab.member(topic=f"{lab.topic}-other", instance="b")
    said("members subscribe differently and miss messages", lab.type("group", "show", "billing"))


def test_a_new_group_begins_at_the_end(lab):
    lab.send()
    got = lab.member(consume_from=ConsumeFrom.LAST, commit_seconds=0.05)
    wait_until(lambda: lab.admin.group_progress(lab.group))
    wait_until(lambda: {row["lag"] for row in lab.rows("group", "progress", "billing")} == {"0"})
    assert got == []
    lab.type("offset", "reset", "billing", "orders", "--to", "beginning")
    wait_until(lambda: got)


def test_another_member_gets_the_messages(lab):
    lab.admin.create_topic(lab.topic, read_queues=1, write_queues=1)
    members = [lab.member(instance=name) for name in "ab"]
    for _ in range(3):
        lab.send()
    wait_until(lambda: sum(map(len, members)) == 3)
    assert sorted(map(len, members)) == [0, 3]
    queues = [row for row in lab.rows("member", "list", "billing") if row["queues"] == "0"]
    assert len(queues) <= 1  # the other member has the topic's queue, and may have the retry topic's too
    assert len({row["lock_holder"] for row in lab.rows("group", "show", "billing") if row["topic"] == lab.topic}) == 1


def test_the_filter_selects_nothing(lab):
    lab.send(tags="paid")
    got = lab.member(tags="Paid", commit_seconds=0.05)
    wait_until(lambda: any(row["consumer_offset"] == "1" for row in lab.rows("group", "progress", "billing")))
    assert got == []
    assert "=Paid" in lab.type("group", "show", "billing")


@pytest.mark.parametrize("orderly", [False, True])
def test_the_listener_fails(lab, orderly, caplog):
    def fail(messages):
        raise ValueError("cannot bill")

    lab.send()
    lab.member(fail, orderly=orderly, suspend_seconds=0.01)
    wait_until(lambda: lab.rows("member", "list", "billing")[0]["failed_in_hour"] != "0")
    assert "cannot bill" in caplog.text


def test_the_listener_does_not_return(lab):
    free = threading.Event()

    def waits_for_the_bank(messages):
        free.wait(60)

    lab.send()
    lab.member(waits_for_the_bank)
    try:
        wait_until(lambda: lab.rows("member", "list", "billing")[0]["in_memory"] == "1")
        (row,) = lab.rows("member", "list", "billing")
        assert (row["consumed_per_second"], row["failed_in_hour"]) == ("0.0", "0")
        assert "waits_for_the_bank" in lab.type(
            "member", "show", "billing", "CLIENT", "--stacks", CLIENT=row["client_id"]
        )
    finally:
        free.set()


def test_a_message_waits_for_its_time(lab):
    lab.send(delay=600)
    got = lab.member()
    head, message = lab.type("delay", "list", "orders").splitlines()
    assert head.startswith("due")
    assert message
    assert got == []


def test_the_program_subscribes_to_another_topic(lab):
    lab.send()
    lab.producer.send(Message(f"{lab.topic}-other", b"x"))
    lab.member(topic=f"{lab.topic}-other")
    members = lab.type("group", "show", "billing").split("queues, with")[0]
    assert f"{lab.topic}-other=*" in members
    assert f"{lab.topic}=" not in members


def test_failed_messages_became_dead_letters(lab):
    def fail(messages):
        raise ValueError("cannot bill")

    lab.send()
    lab.member(fail, max_retries=0)
    wait_until(lambda: "cannot bill" in lab.type("dlq", "list", "billing"))


def test_a_group_with_an_offset_but_no_message(lab):
    lab.admin.create_topic(lab.topic, read_queues=1, write_queues=1)
    lab.member(commit_seconds=0.05)
    wait_until(
        lambda: [row["broker_offset"] for row in lab.rows("group", "progress", "billing")] in (["0", "0"], ["0"])
    )


def test_the_brokers_address_is_not_reachable(capsys):
    # a broker in a container registers the container's address
    with BlockingCluster(clock=SystemClock(), advertised_host="127.0.0.2") as cluster:
        run(["doctor", "orders", "-n", cluster.namesrv])
    assert re.search(r"WRONG +broker ", capsys.readouterr().out)
