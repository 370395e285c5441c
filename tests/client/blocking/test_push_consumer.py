"""The blocking push consumer: threads, the program's own event loops, Ctrl-C."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq import Consumer, ConsumerConfig, Message, NoNameServer, NotRunning, Producer, PullConsumer, UsageError


@pytest.fixture
def topic(served, request):
    """A topic of this test's own with five messages in it."""
    name = request.node.name.replace("[", "-").replace("]", "")
    with Producer("p", served.namesrv) as producer:
        for n in range(5):
            producer.send(Message(name, b"%d" % n))
    return name


class Seen:
    def __init__(self, count):
        self.bodies = []
        self.all = threading.Event()
        self._count = count

    def __call__(self, messages):
        self.bodies += [int(m.body) for m in messages]
        if len(self.bodies) >= self._count:
            self.all.set()


def test_a_plain_listener_is_called_while_the_program_does_something_else(served, topic):
    seen = Seen(5)
    with Consumer("g1", served.namesrv) as consumer:
        consumer.subscribe(topic, seen)
        assert seen.all.wait(PATIENCE_SECONDS)
        assert consumer.client_id
        assert len(consumer.assignment) == 4
    assert sorted(seen.bodies) == [0, 1, 2, 3, 4]


def test_a_decorator_takes_async_listeners_too(served, topic):
    seen = Seen(5)
    with Consumer("g2", served.namesrv) as consumer:

        @consumer.subscribe(topic)
        async def work(messages):
            await asyncio.sleep(0)
            seen(messages)

        assert seen.all.wait(PATIENCE_SECONDS)


@contextmanager
def ends_by_itself(consumer):
    """Fail, instead of hanging, where the block does not end within five seconds; the consumer is closed then."""
    late = threading.Event()

    def rescue():
        late.set()
        consumer.close()

    timer = threading.Timer(PATIENCE_SECONDS, rescue)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    assert not late.is_set(), "it had to be closed from outside"
    with pytest.raises(NotRunning):
        consumer.pause()


def test_run_ends_when_a_listener_says_stop(served, topic):
    consumer = Consumer("g3", served.namesrv, config=ConsumerConfig(batch=8))
    seen = []

    @consumer.subscribe(topic)
    def work(messages):
        seen.extend(messages)
        if len(seen) == 5:
            consumer.stop()

    with ends_by_itself(consumer):
        consumer.run()
    assert sorted(int(message.body) for message in seen) == [0, 1, 2, 3, 4]


def test_run_ends_when_an_async_listener_says_stop(served, topic):
    consumer = Consumer("g4", served.namesrv)

    @consumer.subscribe(topic)
    async def work(messages):
        consumer.stop()

    with ends_by_itself(consumer):
        consumer.run()


def test_run_ends_with_ctrl_c(served, topic):
    consumer = Consumer("g5", served.namesrv)
    pressed = []

    @consumer.subscribe(topic)
    def work(messages):
        pressed.append(messages)
        if len(pressed) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with ends_by_itself(consumer):
        consumer.run()
    assert pressed


def test_a_listener_that_exits_ends_the_program_with_its_status_and_the_consumer_closed(served, topic):
    consumer = Consumer("g10", served.namesrv)

    @consumer.subscribe(topic)
    def work(messages):
        sys.exit(3)

    with pytest.raises(SystemExit) as exit:
        consumer.run()
    assert exit.value.code == 3
    with pytest.raises(NotRunning):
        consumer.wait()


PROGRAM = r"""
import sys, time
from pyromq import Consumer
namesrv, topic, signals, seconds = sys.argv[1:]
consumer = Consumer(topic + "-group", namesrv)
@consumer.subscribe(topic)
def work(messages):
    print("begun\n", end="", flush=True)
    time.sleep(float(seconds))
    print("done\n", end="", flush=True)
consumer.run(signals=signals == "yes")
print("closed")
"""


@contextmanager
def consuming_program(served, topic, *, signals="yes", seconds="0"):
    """A process that consumes, killed at the end if it still lives."""
    arguments = [sys.executable, "-c", PROGRAM, served.namesrv, topic, signals, seconds]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def consumed(served, topic):
    with PullConsumer(f"{topic}-group", served.namesrv) as consumer:
        return sum(consumer.committed(queue) for queue in consumer.queues(topic))


def test_sigterm_ends_run_as_ctrl_c_does(served, topic):
    with consuming_program(served, topic) as program:
        lines = [program.stdout.readline() for _ in range(10)]
        program.terminate()
        rest, _ = program.communicate(timeout=PATIENCE_SECONDS)
    assert (lines.count("done\n"), rest, program.returncode) == (5, "closed\n", 0)
    assert consumed(served, topic) == 5


def test_a_second_sigterm_does_not_cut_the_closing_short(served, topic):
    with consuming_program(served, topic, seconds="0.5") as program:
        assert [program.stdout.readline() for _ in range(5)] == ["begun\n"] * 5
        program.terminate()
        time.sleep(0.1)
        program.terminate()
        rest, _ = program.communicate(timeout=PATIENCE_SECONDS)
    assert (rest, program.returncode) == ("done\n" * 5 + "closed\n", 0)
    assert consumed(served, topic) == 5


def test_run_leaves_signals_alone_if_told(served, topic):
    with consuming_program(served, topic, signals="no") as program:
        program.stdout.readline()
        program.terminate()
        program.communicate(timeout=PATIENCE_SECONDS)
    assert program.returncode == -signal.SIGTERM


def test_a_handler_of_the_programs_own_is_called(served, topic):
    consumer, heard = Consumer("g11", served.namesrv), []
    consumer.subscribe(topic, lambda messages: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda *_: (heard.append(True), consumer.stop()))
    try:
        consumer.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard


def test_a_signal_handler_may_stop_it(served, topic):
    consumer = Consumer("g6", served.namesrv)
    consumer.subscribe(topic, lambda messages: os.kill(os.getpid(), signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    try:
        with ends_by_itself(consumer):
            consumer.run()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_was_consumed_does_not_come_again(served, topic):
    for expected in (5, 0):
        seen = Seen(max(expected, 1))
        with Consumer("g7", served.namesrv) as consumer:
            consumer.subscribe(topic, seen)
            assert seen.all.wait(5 if expected else 0.2) is bool(expected)
        assert len(seen.bodies) == expected


def test_a_listener_may_send(served, topic):
    with Producer("p", served.namesrv) as producer, Consumer("g8", served.namesrv) as consumer:

        @consumer.subscribe(topic)
        def forward(messages):
            for message in messages:
                producer.send(Message(topic + "-copy", message.body))

        seen = Seen(5)
        consumer.subscribe(topic + "-copy", seen)
        assert seen.all.wait(PATIENCE_SECONDS)


def test_pausing_unsubscribing_and_wrong_calls(served, topic):
    consumer = Consumer("g9", served.namesrv)
    consumer.subscribe(topic, print)
    consumer.unsubscribe(topic)
    with pytest.raises(UsageError, match="not subscribed"):
        consumer.unsubscribe(topic)
    with consumer:
        consumer.pause()
        consumer.resume()
        with pytest.raises(UsageError, match="running already"):
            consumer.start()


def test_starting_without_a_name_server_fails_at_once():
    with pytest.raises(NoNameServer), Consumer("g", "127.0.0.1:1"):
        pass


async def test_inside_an_event_loop_the_async_class_is_named(served):
    with pytest.raises(UsageError, match="Async"):
        Consumer("g", served.namesrv).start()
