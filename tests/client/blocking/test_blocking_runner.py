"""The portal: who turns the loop, and what happens when several want to."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from tests.platforms.marks import not_windows
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.blocking.blocking_client import BlockingRunner
from pyromq.client.blocking.caller_runs_loop import TAKE_OVER_SECONDS
from pyromq.client.blocking.sigint import sigterm_interrupts
from pyromq.errors import NotRunning, UsageError


async def nothing():
    pass


@pytest.fixture(params=[None, "shop"])
def portal(request):
    """A portal with a loop of its own, and one with the loop of an instance."""
    portal = BlockingRunner(lambda: None, request.param)
    portal.start(nothing)
    yield portal
    portal.close(nothing)


async def add(a, b, seconds=0.0):
    await asyncio.sleep(seconds)
    return a + b


async def call(function):
    function()


async def thread_name():
    return threading.current_thread().name


def soon(value):
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, value)
    return future


def test_the_caller_gets_the_result(portal):
    assert portal.run(add, 1, b=2) == 3


def test_the_caller_gets_the_error(portal):
    with pytest.raises(TypeError):
        portal.run(add, 1, "x")


def test_the_calling_thread_turns_the_loop_itself(portal):
    portal.run(nothing)
    assert portal.run(thread_name) == threading.current_thread().name


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_the_keeper_outlives_a_task_that_exits(portal, error, caplog):
    done = threading.Event()

    async def leave_a_task():
        asyncio.get_running_loop().call_later(3 * TAKE_OVER_SECONDS, exits)
        asyncio.get_running_loop().call_later(8 * TAKE_OVER_SECONDS, done.set)

    def exits():
        raise error

    portal.run(leave_a_task)
    assert done.wait(PATIENCE_SECONDS)
    assert "the loop continues" in caplog.text


def test_the_keeper_turns_the_loop_when_nobody_calls(portal):
    done = threading.Event()
    names = []

    async def later():
        async def work():
            names.append(await thread_name())
            done.set()

        asyncio.get_running_loop().later = asyncio.get_running_loop().create_task(work())

    portal.run(later)
    assert done.wait(PATIENCE_SECONDS)
    assert names in (["pyromq keeper"], [threading.current_thread().name])
    time.sleep(4 * TAKE_OVER_SECONDS)  # real threads, real time: the keeper has the loop now
    assert portal.run(add, 1, 2) == 3
    assert portal.run(thread_name) == threading.current_thread().name


def test_many_threads_share_one_runner(portal):
    def work(number):
        return [portal.run(add, number, n, 0.0001 * (n % 3)) for n in range(50)]

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(work, range(16)))
    assert results == [[number + n for n in range(50)] for number in range(16)]


def test_a_short_call_does_not_wait_for_a_long_one(portal):
    begun, end = threading.Event(), asyncio.Event()

    async def wait_for_the_end():
        begun.set()
        await end.wait()

    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(portal.run, wait_for_the_end)
        assert begun.wait(PATIENCE_SECONDS)
        for n in range(20):
            assert portal.run(add, n, n) == 2 * n
        assert not long.done()
        portal.run(call, end.set)
        long.result(PATIENCE_SECONDS)


def test_a_long_call_goes_on_when_the_thread_that_turned_the_loop_leaves(portal):
    with ThreadPoolExecutor(1) as pool:
        turning = pool.submit(portal.run, add, 1, 1, 0.02)
        assert portal.run(add, 2, 2, 0.06) == 4
        assert turning.result() == 2


def test_submitted_work_keeps_its_order(portal):
    begun = []

    def begin(number):
        begun.append(number)
        return soon(number)

    outcomes = [portal.submit(begin, n) for n in range(300)]
    assert [o.result() for o in outcomes] == list(range(300))
    assert begun == list(range(300))


def test_submitted_work_keeps_its_order_whoever_turns_the_loop(portal):
    begun = []

    def begin(number):
        begun.append(number)
        return soon(number)

    for number in range(0, 200, 2):
        portal.submit(begin, number)
        portal.run(begin, number + 1)
        if number % 50 == 0:
            time.sleep(3 * TAKE_OVER_SECONDS)  # let the keeper come between
    assert begun == list(range(200))


def test_outcomes_come_without_anybody_asking(portal):
    outcomes = [portal.submit(soon, n) for n in range(10)]
    done, _ = wait(outcomes, timeout=PATIENCE_SECONDS)
    assert len(done) == 10


def test_an_outcome_may_be_waited_for_with_a_limit(portal):
    outcome = portal.submit(lambda: asyncio.get_running_loop().create_future())
    with pytest.raises(TimeoutError):
        outcome.result(timeout=0.02)
    assert outcome.cancel()


def test_work_that_closing_has_not_ended_is_not_waited_for(portal):
    outcome = portal.submit(lambda: asyncio.get_running_loop().create_future())
    portal.close(nothing)
    for wait_for_it in (outcome.result, outcome.exception):
        with pytest.raises(NotRunning, match="the client is closed"):
            wait_for_it()


def test_what_work_raises_at_once_reaches_the_submitter(portal):
    def refuse():
        raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        portal.submit(refuse).result()


def test_an_outcome_tells_errors_and_callbacks(portal):
    def fail():
        future = asyncio.get_running_loop().create_future()
        future.set_exception(UsageError("late"))
        return future

    told = []
    outcome = portal.submit(fail)
    outcome.add_done_callback(told.append)
    assert isinstance(outcome.exception(), UsageError)
    assert told == [outcome]


def test_inside_a_running_loop_the_async_class_is_named(portal):
    async def inside():
        portal.run(add, 1, 2)

    with pytest.raises(UsageError, match="use the Async class"):
        asyncio.run(inside())
    with pytest.raises(UsageError, match="use the Async class"):
        portal.run(inside)


@pytest.mark.parametrize("name", [None, "a loop nobody has made"])
async def test_starting_inside_a_running_loop_is_refused_and_leaves_that_loop_alone(name):
    threads = set(threading.enumerate())
    for portal in (BlockingRunner(lambda: None, name), BlockingRunner(lambda: None, name)):
        with pytest.raises(UsageError, match="use the Async class"):
            portal.start(nothing)
        portal.close(nothing)
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end
    await asyncio.sleep(0)
    assert asyncio.get_running_loop().is_running()


def test_closing_inside_a_running_loop_is_refused_and_leaves_both_loops_alone(portal):
    async def inside():
        with pytest.raises(UsageError, match="use the Async class"):
            portal.close(nothing)
        await asyncio.sleep(0)

    asyncio.run(inside())
    assert portal.run(add, 1, 2) == 3


def test_an_outcome_is_awaited_inside_a_running_loop(portal):
    ready = threading.Event()
    outcome = portal.submit(lambda: asyncio.ensure_future(asyncio.to_thread(ready.wait, PATIENCE_SECONDS)))

    async def inside():
        with pytest.raises(UsageError, match="wrap_future"):
            outcome.result(PATIENCE_SECONDS)
        ready.set()
        return await asyncio.wrap_future(outcome), outcome.result()

    assert asyncio.run(inside()) == (True, True)


def test_before_start_and_after_close_nothing_runs():
    portal = BlockingRunner(lambda: None)
    with pytest.raises(NotRunning, match="start it"):
        portal.run(nothing)
    portal.start(nothing)
    portal.close(nothing)
    portal.close(nothing)
    with pytest.raises(NotRunning, match="closed"):
        portal.run(nothing)


def test_a_failed_start_leaves_nothing_behind():
    portal = BlockingRunner(lambda: None)
    threads = set(threading.enumerate())
    with pytest.raises(TypeError):
        portal.start(lambda: add(1, "x"))
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end
    with pytest.raises(NotRunning):
        portal.run(nothing)


def test_closing_ends_a_call_of_another_thread():
    portal = BlockingRunner(lambda: None)
    portal.start(nothing)
    begun, stop = threading.Event(), asyncio.Event()

    async def wait_for_the_stop():
        begun.set()
        return await stop.wait()

    async def close():
        stop.set()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(portal.run, wait_for_the_stop)
        assert begun.wait(PATIENCE_SECONDS)
        portal.close(close)
        assert waiting.result(PATIENCE_SECONDS) is True


def interrupt_after(seconds):
    timer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    return timer


def test_ctrl_c_ends_the_call_and_leaves_the_portal_usable(portal):
    with pytest.raises(KeyboardInterrupt):
        timer = interrupt_after(0.05)
        portal.run(asyncio.Event().wait)
    timer.join()
    assert portal.run(add, 1, 2) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_ends_a_call_while_another_thread_turns_the_loop(portal):
    begun, end, cancelled = threading.Event(), asyncio.Event(), threading.Event()

    async def wait_for_the_end():
        begun.set()
        await end.wait()

    async def wait_forever():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(portal.run, wait_for_the_end)
        assert begun.wait(PATIENCE_SECONDS)
        with pytest.raises(KeyboardInterrupt):
            timer = interrupt_after(0.05)
            portal.run(wait_forever)
        timer.join()
        assert cancelled.wait(PATIENCE_SECONDS)
        assert not other.done()
        portal.run(call, end.set)
        other.result(PATIENCE_SECONDS)
    assert portal.run(add, 1, 2) == 3


def test_ctrl_c_at_any_moment_leaves_the_portal_usable(portal):
    for attempt in range(30):
        timer = threading.Timer(0.001 + 0.0003 * attempt, os.kill, [os.getpid(), signal.SIGINT])
        with pytest.raises(KeyboardInterrupt):
            timer.start()  # in here: the signal may come before this returns
            while True:
                portal.run(add, 1, 2)
        timer.join()
        assert portal.run(add, 1, 2) == 3


def test_a_program_with_its_own_handler_keeps_it(portal):
    calls = []
    previous = signal.signal(signal.SIGINT, lambda *_: calls.append(1))
    try:
        timer = interrupt_after(0.02)
        assert portal.run(add, 1, 2, 0.1) == 3
        timer.join()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert calls == [1]


@pytest.mark.parametrize("is_turned", [False, True], ids=["turns the loop", "waits for another thread"])
def test_a_programs_own_handler_that_is_called_between_callbacks_ends_no_call(portal, is_turned):
    calls, begun, end = [], threading.Event(), asyncio.Event()
    previous = signal.signal(signal.SIGINT, lambda *_: calls.append(1))

    async def interrupted():
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)
        return 3

    async def turns():
        begun.set()
        await end.wait()

    try:
        with ThreadPoolExecutor(1) as pool:
            if is_turned:
                other = pool.submit(portal.run, turns)
                assert begun.wait(PATIENCE_SECONDS)
            assert portal.run(interrupted) == 3
            if is_turned:
                portal.run(call, end.set)
                other.result(PATIENCE_SECONDS)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert calls == [1]


def test_ctrl_c_while_work_is_submitted_is_not_lost(portal):
    def begin():
        signal.raise_signal(signal.SIGINT)
        return soon(1)

    with pytest.raises(KeyboardInterrupt):
        portal.submit(begin)
    assert portal.run(add, 1, 2) == 3


def test_ctrl_c_ends_the_call_of_the_main_thread_and_no_other(portal):
    other = BlockingRunner(lambda: None, "other")
    other.start(nothing)
    results = []

    async def interrupted():
        signal.raise_signal(signal.SIGINT)
        results.append(pool.submit(other.run, add, 1, 2).result(PATIENCE_SECONDS))
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        portal.run(interrupted)
    other.close(nothing)
    assert results == [3]


@not_windows
def test_a_second_sigterm_does_not_interrupt_the_cleaning_up():
    cleaned = False
    with pytest.raises(KeyboardInterrupt), sigterm_interrupts():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned = True
    assert cleaned


def test_ctrl_c_just_before_the_loop_waits_ends_the_call(portal):
    class Timers(list):
        def __bool__(self):
            if is_waiting:
                signal.raise_signal(signal.SIGINT)
            return False

    async def wait():
        is_waiting.append(True)
        await asyncio.Event().wait()

    is_waiting = []
    loop = portal._caller_loop.loop
    timers, loop._scheduled = loop._scheduled, Timers()
    rescue = threading.Timer(PATIENCE_SECONDS, loop.call_soon_threadsafe, [int])
    rescue.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.run(wait)
        assert rescue.is_alive(), "only another event ended the wait"
    finally:
        loop._scheduled = timers
        rescue.cancel()
    assert portal.run(add, 1, 2) == 3


@not_windows
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(portal):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            portal.run(nothing)
        except NotRunning as error:
            os.write(writer, str(error).encode())
        portal.close(nothing)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "made before fork()" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert portal.run(add, 1, 2) == 3


PROGRAM = """
import asyncio
from pyromq.client.blocking.blocking_client import BlockingRunner

def close():
    print("closing", flush=True)
    portal.close(said)

async def said():
    print("closed", flush=True)

portal = BlockingRunner(close)
portal.start(lambda: asyncio.sleep(0))
"""


def test_a_forgotten_client_is_closed_when_the_program_ends():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    assert (done.stdout, done.stderr) == ("closing\nclosed\n", "")
