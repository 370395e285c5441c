"""Threads and tasks that call listeners: bounded, woken when needed, none forgotten."""

import asyncio
import threading

from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.consumer.push.listener_pool import ListenerTasks, ListenerThreads


class Work:
    """Something to do in a thread or a task, which may wait for a signal."""

    def __init__(self, do=lambda: None):
        self.do = do

    def run(self):
        self.do()
        return True

    async def run_in_task(self):
        result = self.do()
        if result is not None:
            await result
        return True


async def test_threads_do_everything_in_order_when_there_is_one():
    done, order = [], []
    threads = ListenerThreads[Work](1, done.append, name="t")
    threads.submit([Work(lambda n=n: order.append(n)) for n in range(200)])
    await until(lambda: len(done) == 200)
    assert order == list(range(200))
    threads.stop()
    await until(lambda: not threads.count)


async def test_slow_work_gets_as_many_threads_as_allowed():
    release, at_work, done = threading.Event(), [], []

    def slow():
        at_work.append(threading.current_thread())
        release.wait(PATIENCE_SECONDS)

    threads = ListenerThreads[Work](4, done.append, name="t")
    threads.submit([Work(slow) for _ in range(9)])
    await until(lambda: len(at_work) == 4)
    await asyncio.sleep(0.02)
    assert (len(at_work), threads.count) == (4, 4)
    release.set()
    await until(lambda: len(done) == 9)
    threads.stop()


async def test_quick_work_is_not_spread_over_threads():
    done = []
    threads = ListenerThreads[Work](20, done.append, name="t")
    for _ in range(20):
        threads.submit([Work() for _ in range(500)])
        await until(lambda: not threads._backlog)
    await until(lambda: len(done) == 10_000)
    assert threads.count < 20
    threads.stop()


async def test_no_wake_up_is_lost_over_many_submissions():
    done = []
    threads = ListenerThreads[Work](3, done.append, name="t")
    for n in range(2000):
        threads.submit([Work()])
        if n % 7 == 0:
            await asyncio.sleep(0)
    await until(lambda: len(done) == 2000)
    threads.stop()
    await until(lambda: not threads.count)


async def test_tasks_are_bounded_and_all_work_is_done():
    release, at_work, done = asyncio.Event(), [], []

    async def slow():
        at_work.append(1)
        await release.wait()

    tasks = ListenerTasks[Work](3, done.append, name="t")
    tasks.submit([Work(slow) for _ in range(8)])
    await until(lambda: len(at_work) == 3)
    await asyncio.sleep(0.01)
    assert len(at_work) == 3
    release.set()
    await until(lambda: len(done) == 8)
    await tasks.stop()


async def test_listeners_that_never_wait_let_the_loop_turn():
    done, turns = [], []

    def busy():
        end = asyncio.get_running_loop().time() + 0.001
        while asyncio.get_running_loop().time() < end:
            pass

    tasks = ListenerTasks[Work](2, done.append, name="t")
    tasks.submit([Work(busy) for _ in range(40)])
    while len(done) < 40:
        await asyncio.sleep(0)
        turns.append(len(done))
    assert len(set(turns)) > 5
    await tasks.stop()


async def test_a_cancelled_task_makes_room_for_the_next():
    begun, done = [], []

    async def hang():
        begun.append(1)
        await asyncio.Event().wait()

    tasks, hanging = ListenerTasks[Work](1, done.append, name="t"), Work(hang)
    tasks.submit([hanging, Work()])
    await until(lambda: begun)
    assert not done
    tasks.cancel(hanging)
    await until(lambda: len(done) == 1)
    await tasks.stop()
