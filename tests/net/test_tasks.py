"""Periodic work: runs when it is time, survives its failures, and ends with its owner."""

import asyncio
import gc
import logging
from contextlib import suppress

import pytest

from pyromq.errors import Unavailable
from pyromq.net.tasks import Tasks, every, shared


@pytest.fixture
async def tasks():
    tasks = Tasks()
    yield tasks
    await tasks.stop()


async def started(tasks, clock, action, **options):
    """Start an action that runs every 10 s, and let its task begin."""
    tasks.start(every(10, action, clock, **options), name="work")
    await clock.advance(0)


async def test_work_is_done_each_time_the_interval_has_passed(tasks, clock):
    times = []
    begin = clock.monotonic()
    await started(tasks, clock, lambda: times.append(clock.monotonic() - begin))
    await clock.advance(9)
    assert times == []
    await clock.advance(26)
    assert times == [10, 20, 30]


async def test_the_first_time_may_be_another(tasks, clock):
    times = []
    begin = clock.monotonic()
    await started(tasks, clock, lambda: times.append(clock.monotonic() - begin), first_after=1)
    await clock.advance(25)
    assert times == [1, 11, 21]


async def test_work_may_be_a_coroutine_and_does_not_overlap_itself(tasks, clock):
    running = []

    async def work():
        running.append("begin")
        await clock.sleep(15)
        running.append("end")

    await started(tasks, clock, work)
    await clock.advance(55)
    assert running == ["begin", "end"] * 2


@pytest.mark.parametrize(
    ("error", "levels", "text"),
    [
        (Unavailable("no name server"), [logging.WARNING], "no name server"),
        (ZeroDivisionError(), [logging.ERROR] * 2, "failed"),
    ],
)
async def test_failing_work_is_logged_and_done_again(tasks, clock, caplog, error, levels, text):
    times = []

    def work():
        times.append(clock.monotonic())
        raise error

    await started(tasks, clock, work)
    await clock.advance(20)
    assert len(times) == 2
    assert [record.levelno for record in caplog.records] == levels
    assert "work" in caplog.records[0].getMessage()
    assert text in caplog.records[0].getMessage()


async def test_an_error_that_lasts_is_logged_when_it_begins_changes_and_ends(tasks, clock, caplog):
    caplog.set_level(logging.INFO, logger="pyromq.net.tasks")
    texts = iter(["full", "full", "full", "read-only", None, None, "full"])

    def work():
        if (text := next(texts)) is not None:
            raise Unavailable(text)

    await started(tasks, clock, work)
    await clock.advance(70)
    assert [message.rpartition("work")[2] for message in caplog.messages] == [
        *(": full", ": read-only", " succeeds again", ": full"),
    ]


async def test_stopping_waits_until_each_task_has_ended(tasks, clock):
    ended = []

    async def work():
        try:
            await clock.sleep(100)
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    for _ in range(3):
        tasks.start(work(), name="work")
    await clock.advance(1)
    await tasks.stop()
    assert ended == [True] * 3
    await clock.advance(200)


async def test_a_task_that_dies_is_logged_with_its_name(tasks, caplog):
    async def work():
        raise ZeroDivisionError

    task = tasks.start(work(), name="count things")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.getMessage() == "task count things died"
    assert record.exc_info[0] is ZeroDivisionError


async def test_a_task_that_fails_while_it_is_stopped_is_logged_and_no_error(tasks, clock, caplog):
    async def work():
        try:
            await clock.sleep(100)
        finally:
            raise ZeroDivisionError

    tasks.start(work(), name="work")
    await clock.advance(1)
    await tasks.stop()
    await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == ["task work died"]


async def test_a_task_that_has_ended_is_forgotten(tasks):
    async def work():
        return None

    await asyncio.wait([tasks.start(work(), name="work")])
    await asyncio.sleep(0)
    assert tasks._tasks == set()
    await tasks.stop()


async def test_a_cancelled_caller_leaves_a_shared_future_to_the_others():
    future = asyncio.get_running_loop().create_future()
    first, second = (asyncio.create_task(shared(future)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    future.set_result(7)
    assert await second == 7


async def test_an_error_after_the_only_caller_was_cancelled_is_not_logged():
    logged = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context["message"]))
    future = asyncio.get_running_loop().create_future()
    caller = asyncio.create_task(shared(future))
    await asyncio.sleep(0)
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    future.set_exception(Unavailable("no answer"))
    del future
    await asyncio.sleep(0)
    gc.collect()
    assert logged == []


async def test_a_cancelled_shared_future_cancels_its_callers():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    with pytest.raises(asyncio.CancelledError):
        await shared(future)
