"""What waits is counted and listed in steps; messages come, leave and are dropped between them."""

import random

import pytest
from tests.broker.delays.test_timer_recovery import Run
from tests.seed import seed_of_the_day
from tests.slow_work import steps_of

from pyromq.broker.delays import timer_index
from pyromq.broker.delays import timer_processors as timer_answers
from pyromq.broker.delays.timer_processors import TimerListProcessor
from pyromq.remoting.bodies import TimerCounts, TimerList, decode_body
from pyromq.remoting.headers import ListTimers
from pyromq.store.timers import timer_bucket
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerBucket


@pytest.fixture
def run(config):
    run = Run(config)
    yield run
    run.crash()


@pytest.fixture
def small_steps(monkeypatch):
    for module, name in (
        (timer_bucket, "_AT_ONCE"),
        (timer_answers, "MESSAGES_AT_ONCE"),
        (timer_answers, "TOPICS_AT_ONCE"),
        (timer_index, "FOLLOWED_RECORDS"),
    ):
        monkeypatch.setattr(module, name, 2)


def listing(run):
    return TimerListProcessor(run.timers, broker_name="broker-a", clock=run.clock)


def page(count=100, *, begin_ms=0, after=-1):
    return ListTimers(topic="orders", count=count, begin_ms=begin_ms, after=after)


def finish(work, *, between=lambda: None):
    """Work an answer out; return it, and in how many steps."""
    work = steps_of(work)
    steps = 0
    try:
        while True:
            next(work)
            steps += 1
            between()
    except StopIteration as done:
        return done.value.body, steps


def keys(body):
    return [timer.message_id for timer in decode_body(TimerList, body).timers]


def park_some(run, count=20, *, spread=1):
    """Let messages wait that are due in the order of their keys, and come in another; return when."""
    first = run.clock.now_ms() // HOUR_MS * HOUR_MS + 10 * HOUR_MS
    numbers = list(range(count))
    random.Random(count).shuffle(numbers)
    for number in numbers:
        run.park(first + number * spread, f"K{number:03}")
    return first


def test_a_bucket_is_listed_in_steps_and_as_it_is_at_once(run, small_steps, monkeypatch):
    first = park_some(run)
    for number in (3, 4, 11):
        run.cancel(first + number, f"K{number:03}")
    run.work()
    run.timers.index.buckets[first // HOUR_MS].release()
    in_steps, steps = finish(listing(run).list(page(), None))
    assert steps >= 10 + 8 + 1  # entries, messages, and all but the last of what is finished, two at a time
    for module, name in ((timer_bucket, "_AT_ONCE"), (timer_answers, "MESSAGES_AT_ONCE")):
        monkeypatch.setattr(module, name, 1_000)
    at_once, few = finish(listing(run).list(page(), None))
    assert (in_steps, few) == (at_once, 1)  # entries; not 50 messages
    assert keys(in_steps) == [f"K{number:03}" for number in range(20) if number not in (3, 4, 11)]


def test_pages_end_where_they_did(run, small_steps):
    park_some(run, spread=HOUR_MS // 5)
    found, place = [], (0, -1)
    while place[0] is not None:
        body, _ = finish(listing(run).list(page(3, begin_ms=place[0], after=place[1]), None))
        found.append(keys(body))
        reply = decode_body(TimerList, body)
        place = (reply.next_ms, reply.next_after)
    assert [key for keys in found for key in keys] == [f"K{number:03}" for number in range(20)]
    assert {len(each) for each in found[:-1]} == {3}


def test_counting_catches_up_in_steps_after_a_crash(config, small_steps):
    run = Run(config)
    park_some(run)
    run.flush()
    run.crash()
    run = Run(config)
    body, steps = finish(listing(run).count(None, None))
    assert steps >= 10
    assert decode_body(TimerCounts, body).counts["orders"].count == 20
    run.crash()


@pytest.mark.parametrize("step", range(0, 21, 3))
def test_an_hour_that_is_dropped_meanwhile_is_left_and_stays_gone(run, small_steps, step):
    first = park_some(run)
    later = first + 5 * HOUR_MS
    run.park(later, "later")
    run.save()
    steps = iter(range(1_000))

    def drop():
        if next(steps) == step:
            run.clock.jump((first - run.clock.now_ms()) // 1000 + 3 * 3600)
            run.work()
            run.save()
            assert sorted(run.timers.index.buckets) == [later // HOUR_MS]

    body, _ = finish(listing(run).list(page(), None), between=drop)
    assert keys(body)[-1] == "later"
    assert not [path for path in (run.config.data / "timers").iterdir() if path.name.endswith(f"-{0}.entries")]


@pytest.mark.parametrize("number", range(20))
def test_what_is_finished_is_learnt_while_more_is(tmp_path, small_steps, number):
    choose = random.Random(seed_of_the_day() + number)
    bucket, finished = TimerBucket(tmp_path, "hour", 0), set()

    def act():
        match choose.randrange(4):
            case 0:
                bucket.add(1, 2, 3, bucket.count, 5)
            case 1 if bucket.count:
                chosen = choose.randrange(bucket.count)
                assert bucket.finish(chosen) == (chosen not in finished)
                finished.add(chosen)
            case 2:
                bucket.write(1 << 30)
                bucket.release()

    for _ in range(60):
        act()
        bucket.release()
        while not bucket.read_finished_marks():
            act()
        assert {each for each in range(bucket.count) if bucket.is_finished(each)} == finished
        assert bucket.pending == bucket.count - len(finished)
    bucket.release()
