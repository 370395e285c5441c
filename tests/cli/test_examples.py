"""The examples that help shows: each does what it says, on a cluster that has what it names."""

import asyncio
import json
import re
import select
import shlex
import signal
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.cli.commands.messages.test_dlq_commands import die
from tests.cli.commands.messages.test_transaction_commands import attempt, leave
from tests.cli.commands.test_acl_commands import FILE
from tests.cli.conftest import Served
from tests.cli.json_fields import check_fields
from tests.store.making import TOPIC, fill, opened
from tests.waiting import PATIENCE_SECONDS

from pyromq import Admin, Message, MQError, Producer
from pyromq.cli.command_tree import Group, commands_below
from pyromq.cli.examples import SHOWN, examples, examples_of
from pyromq.cli.main import pyromq
from pyromq.clock import SystemClock
from pyromq.errors import AlreadyExists, TopicNotFound
from pyromq.remoting.bodies import GroupConfig

CONTEXT = pyromq.make_context("pyromq", ["help"], resilient_parsing=True)
ALL = [pyromq, *commands_below(CONTEXT, pyromq)]
LEAVES = [each for each in ALL if not isinstance(each, Group) or each.invoke_without_command]
STAYING = {("serve",), ("serve", "broker"), ("serve", "namesrv"), ("console",), ("proxy",)}
STAYING_LINES = {
    "pyromq group monitor",
    "pyromq consume orders -g billing -c 100 -o json",
    "pyromq receive orders -g billing --ack --follow -f '%r %k %v\\n'",
}
USING_UP = {
    "create",
    "delete",
    "cancel",
    "commit",
    "rollback",
    "redrive",
    "receive",
}  # need what they name anew each time
TOPICS = ("orders", "audit", "%DLQ%billing", "%RETRY%billing")
GROUPS = ("billing", "audit")


def lines_of(command):
    return examples_of(command.path, command.list_commands(CONTEXT) if isinstance(command, Group) else ())


@pytest.mark.parametrize("command", ALL, ids=lambda command: "-".join(command.path))
def test_every_command_has_three_examples_that_fit_a_terminal(command):
    lines = lines_of(command)
    assert len(set(lines)) == SHOWN
    assert all(len(line) <= 76 for line in lines)


def test_every_example_is_shown():
    shown = {line for each in ALL for line in lines_of(each)}
    assert set(examples()) - shown == set()


@pytest.fixture(scope="module")
def cluster():
    """A cluster with the topics and groups of the examples, dead letters, and a member whose listener succeeds."""
    with closing(Served(clock=SystemClock(), transaction_check_interval_ms=3_600_000)) as served:
        yield served


async def member_of(cluster):
    consumer = await cluster.push_consumer("billing")
    consumer.subscribe("orders", lambda _: None)
    admin = await cluster.admin()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            with suppress(MQError):
                if (await admin.members.running("billing", consumer.client_id)).queues:
                    return consumer
            await asyncio.sleep(0.005)


class Stage:
    """What examples name, made anew before each: `ids` are what a reader copies from other output."""

    def __init__(self, served):
        self.served = served
        self.ids = {}
        self.member = None

    def set_up(self, path):
        with Admin(self.served.namesrv) as admin:
            for topic in TOPICS:
                if path[0] == "topic":
                    with suppress(TopicNotFound):
                        admin.delete_topic(topic)
                if path != ("topic", "create"):
                    with suppress(AlreadyExists):
                        admin.create_topic(topic, 8)
            for group in GROUPS:
                if path[0] == "group":
                    admin.delete_group(group)
                if path != ("group", "create"):
                    with suppress(AlreadyExists):
                        admin.create_group(GroupConfig(name=group))
        if path != ("topic", "create"):
            with Admin(self.served.namesrv) as admin:
                admin.alter_topic("orders", permission="rw")  # an example makes it read-only
            with Producer("shop", self.served.namesrv) as producer:
                self.ids["MESSAGE_ID"] = producer.send(Message("orders", b"paid", keys=["order-7"])).message_id
        make = getattr(self, f"_{path[0]}", None)
        if make is not None:
            make(path)

    def _member(self, path):
        if path[-1] == "producers":
            self.served.do(self._connected_producer())
        self.member = self.served.do(member_of(self.served.cluster))
        self.ids["CLIENT_ID"] = self.member.client_id

    def _topic(self, path):
        if path[-1] == "producers":
            self.served.do(self._connected_producer())

    async def _connected_producer(self):
        producer = await self.served.cluster.producer("shop")
        await producer.send(Message("orders", b"1"))

    def _dlq(self, path):
        with Admin(self.served.namesrv) as admin:
            admin.delete_topic("%DLQ%billing")  # other examples sent to it
            admin.create_topic("%DLQ%billing", 1)
        letters = [Message("orders", b"timeout of the bank")]
        (self.ids["MESSAGE_ID"],) = self.served.do(die(self.served.cluster, "billing", letters))

    def _cluster(self, path):
        with Admin(self.served.namesrv) as admin:
            if path[1:] in (("kv", "delete"), ("kv", "list")):
                for key in ("currency", "limit"):
                    admin.put_kv("shop", key, "1")
            if path[-1] == "lag":
                admin.reset_offset("billing", "orders", 0)

    def _console(self, path):
        if path[-1] in ("delete", "list") and not Path("console").exists():
            accounts = pytest.importorskip("pyromq.console.security.console_accounts").ConsoleAccounts
            for folder, viewers in (("pyromq-console", ["alice", "bob"]), ("console", ["carol"])):
                saved = accounts(Path(folder) / "accounts.json")
                saved.save("erin", role="admin", password="a long password of nobody")
                for name in viewers:
                    saved.save(name, role="viewer", password="a long password of nobody")

    def _delay(self, path):
        with Producer("shop", self.served.namesrv) as producer:
            self.ids["MESSAGE_ID"] = producer.send(Message("orders", b"later", delay=3600)).message_id

    def _message(self, path):
        if path[-1] in ("at", "find"):
            self._fill_queues("orders", "%DLQ%billing")
        if path[-1] == "tracks":
            with Admin(self.served.namesrv) as admin:
                admin.reset_offset("billing", "orders", 0)

    def _offset(self, path):
        self._fill_queues("orders")

    def _bench(self, path):
        self._fill_queues("pyromq-bench")

    def _transaction(self, path):
        if path[-1] in ("batch", "batches"):
            with suppress(MQError):  # is decided since an example before
                is_decided = path[-1] == "batch"
                name = "day-2026-01-31" if is_decided else "day-2026-02-01"
                self.served.do(attempt(self.served.cluster, name, b"1", commit=is_decided))
        else:
            (self.ids["MESSAGE_ID"],) = self.served.do(leave(self.served.cluster, "shop", [Message("orders", b"1")]))

    def _fill_queues(self, *topics):
        with Producer("shop", self.served.namesrv) as producer:
            for topic in topics:
                for _ in range(16):
                    producer.send(Message(topic, b"1", keys=["order-7"]))


@pytest.fixture
def stage(cluster, monkeypatch, tmp_path):
    stage = staged(Stage(cluster), monkeypatch, tmp_path)
    yield stage
    if stage.member is not None:
        cluster.do(stage.member.close())


def staged(stage, monkeypatch, tmp_path):
    """Enter a folder with the files that examples name, and let commands find the cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NAMESRV_ADDR", stage.served.namesrv)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    contexts = {name: {"NAMESRV_ADDR": stage.served.namesrv} for name in ("test", "prod", "local")}
    for folder in ("pyromq", "accounts"):
        (tmp_path / folder).mkdir()
    for name, text in {
        "accounts/plain_acl.yml": FILE,
        "orders.txt": "1\n2\n3\n",
        "broker.conf": "brokerName=broker-c\n",
        "secret.txt": "secret-of-another",
        "password.txt": "a long password of nobody",
        "key": "secret-of-ops",
        "ca.pem": "",
        "pyromq/contexts.json": json.dumps({"current": "test", "contexts": contexts}),
    }.items():
        (tmp_path / name).write_text(text)
    return stage


def own(line, stage, tmp_path):
    """Return a line with this test's addresses, folders and ids."""
    line = re.sub(r"127\.0\.0\.1:9876", stage.served.namesrv, line)
    line = re.sub(r"(?<![\w./-])/var/lib", str(tmp_path), line)
    for word, copied in stage.ids.items():
        line = line.replace(word, copied)
    return line


def run_line(cli, line):
    """Run a line in this process; what is before a pipe, in a shell. Prompts are answered by y."""
    before, _, command = line.rpartition("| ")
    stdin = subprocess.run(["sh", "-c", before], capture_output=True, check=True).stdout if before else b"y\n"
    _, *arguments = shlex.split(command)
    return cli(*arguments, stdin=stdin)


REPLICAS = {("cluster", "replicas"), ("cluster", "failover")}
OFFLINE = {("store", each) for each in ("check", "dump", "repair")}
PLAIN = [
    each
    for each in LEAVES
    if each.path and each.path not in STAYING | REPLICAS | OFFLINE and each.path[0] not in ("spark", "acl")
]


def assert_json(text):
    """Check that the output is one value, or one a line; a file's reader needs nothing else."""
    try:
        json.loads(text)
    except ValueError:
        assert text == "" or [json.loads(line) for line in text.splitlines()]


def run_examples(command, cli, stage, tmp_path):
    for number, line in enumerate(lines_of(command)):
        if line in STAYING_LINES:
            continue
        if number == 0 or command.path[-1] in USING_UP:
            stage.set_up(command.path)
        done = run_line(cli, own(line, stage, tmp_path))
        assert done.code == 0, (line, done.err)
        if line.endswith("-o json"):
            assert_json(done.out)
        if command.path[-1] == "wipe":  # other examples send
            assert cli("cluster", "unwipe", "broker-a").code == 0


def named(*paths):
    commands = [each for each in LEAVES if each.path in paths]
    return pytest.mark.parametrize("command", commands, ids=lambda command: "-".join(command.path))


@named(*(each.path for each in PLAIN))
def test_examples_work(command, cli, stage, tmp_path):
    run_examples(command, cli, stage, tmp_path)


PRINTS_NO_DATA = {
    "create", "delete", "clean", "failover", "put", "unwipe", "wipe", "set", "init", "use",
    "export", "completion", "help", "serve", "namesrv", "broker", "console", "proxy", "metadata", "metrics", "settings",
}  # fmt: skip


def test_every_command_that_prints_data_prints_it_as_json_too():
    for command in LEAVES:
        letters = {name for option in command.get_params(CONTEXT) for name in option.opts}
        if command.path and command.path[-1] not in PRINTS_NO_DATA:
            assert "-o" in letters, command.path


@named(*(each.path for each in PLAIN if any(option.name == "output" for option in each.params)))
def test_json_is_all_that_is_printed_and_no_field_vanishes(command, cli, stage, tmp_path):
    printed = []
    for line in lines_of(command):
        if line in STAYING_LINES or " -f " in line:
            continue
        if not printed or command.path[-1] in USING_UP:
            stage.set_up(command.path)
        done = run_line(cli, own(line if "-o json" in line else f"{line} -o json", stage, tmp_path))
        assert done.code == 0, done.err
        printed.append(done.out)
    check_fields(command.path, printed)


@named(*(each.path for each in LEAVES if each.path[:1] == ("acl",)))
def test_examples_of_accounts_work(command, cli, monkeypatch, tmp_path):
    folder = tmp_path / "permissions"
    folder.mkdir()
    (folder / "plain_acl.yml").write_text(FILE)
    monkeypatch.setenv("PYROMQ_ACCESS_KEY", "admin-12")
    monkeypatch.setenv("PYROMQ_SECRET_KEY", "secret-of-admin")
    with closing(Served(permissions=True, permissions_path=folder)) as served:
        stage = staged(Stage(served), monkeypatch, tmp_path)
        for line in lines_of(command):
            if command.path[-1] == "delete":
                assert cli("acl", "set", "shop-app", "--new-secret", "@secret.txt").code == 0
            done = run_line(cli, own(line, stage, tmp_path))
            assert done.code == 0, (line, done.err)
            if line.endswith("-o json"):
                check_fields(command.path, [done.out])


@named(*REPLICAS)
def test_examples_of_replica_sets_work(command, cli, monkeypatch, tmp_path):
    with closing(Served(replicas=3, min_in_sync=2)) as served:
        stage = staged(Stage(served), monkeypatch, tmp_path)
        for line in lines_of(command):
            done = run_line(cli, own(line, stage, tmp_path))
            # The examples name the master that a set may have already, and one that has a master.
            assert done.code == 0 or "is the master of" in done.err or "has a master" in done.err, (line, done.err)
            if line.endswith("-o json"):
                check_fields(command.path, [done.out])


@named(*OFFLINE)
def test_examples_of_stopped_stores_work(command, cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broker.conf").write_text("brokerName=broker-c\n")
    with opened(tmp_path / "pyromq-data") as store:
        fill(store, 40)
    for line in lines_of(command):
        done = run_line(cli, line.replace("orders", TOPIC))
        assert done.code == 0, (line, done.err)
        if line.endswith("-o json"):
            check_fields(command.path, [done.out])


@pytest.mark.slow  # each line is a process, which stays until it is interrupted
@pytest.mark.parametrize(
    "line", sorted(STAYING_LINES | {line for each in LEAVES if each.path in STAYING for line in lines_of(each)})
)
def test_examples_that_stay_work_until_they_are_interrupted(line, start_process, monkeypatch, tmp_path, served_with):
    stage = staged(Stage(served_with()), monkeypatch, tmp_path)  # of its own: `serve broker` takes another's name
    stage.set_up(("consume",))
    arguments = shlex.split(own(line, stage, tmp_path))[1:]
    ports = {"serve": ("--namesrv-port", "--broker-port"), "namesrv": ("--namesrv-port",), "broker": ("--broker-port",)}
    role = next((each for each in ("namesrv", "broker", "serve") if each in arguments), None)
    for option in ports.get(role, ("--port",) if arguments[0] in ("console", "proxy") else ()):
        arguments += [option, "0"]
    if "--metrics-port" in arguments:
        arguments += ["--metrics-port", "0"]
    if "--console" in arguments:
        arguments += ["--console-port", "0"]
    process = start_process(*arguments, NAMESRV_ADDR=stage.served.namesrv)
    if arguments[0] in ("consume", "receive"):
        with Producer("shop", stage.served.namesrv) as producer:
            while not select.select([process.stdout], [], [], 0.1)[0]:
                producer.send(Message("orders", b"new"))
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode in (0, 130), err
