"""What was read of an hour is kept for the next who asks, of a few hours only."""

import pytest

from pyromq.store.timers import timer_files as kept_hours
from pyromq.store.timers.timer_bucket import TimerBucket
from pyromq.store.timers.timer_files import BucketCache


@pytest.fixture
def make(tmp_path):
    made = []

    def make(hour, count=10):
        bucket = TimerBucket(tmp_path, f"hour-{hour}", hour)
        for number in range(count):
            bucket.add(hour * 3_600_000, number, 0, number, 1)
        bucket.write(1 << 30)
        made.append(bucket)
        return bucket

    yield make
    for bucket in made:
        bucket.release()


def ask(kept, bucket, *, near=0):
    assert [each for each in bucket.waiting(bucket.hour * 3_600_000, 3) if each is not None] == [3]
    kept.keep(bucket, near=near)


def known(*buckets):
    return [bucket.hour for bucket in buckets if bucket.finished is not None]


def test_the_hours_asked_about_last_are_kept_within_a_bound(make, monkeypatch):
    monkeypatch.setattr(kept_hours, "KEPT_MESSAGES", 30)
    kept, buckets = BucketCache(), [make(hour) for hour in range(1, 5)]
    for bucket in [*buckets[:3], buckets[0], buckets[3]]:
        ask(kept, bucket)
    assert known(*buckets) == [1, 3, 4]


def test_one_that_is_larger_than_the_bound_is_kept_alone(make, monkeypatch):
    monkeypatch.setattr(kept_hours, "KEPT_MESSAGES", 30)
    kept, small, large = BucketCache(), make(1), make(2, 40)
    ask(kept, small)
    ask(kept, large)
    assert known(small, large) == [2]
    ask(kept, small)
    assert known(small, large) == [1]


def test_one_that_grew_counts_as_it_is(make, monkeypatch):
    monkeypatch.setattr(kept_hours, "KEPT_MESSAGES", 30)
    kept, first, second = BucketCache(), make(1), make(2)
    ask(kept, first)
    ask(kept, second)
    for number in range(15):
        second.add(0, 99, 0, number, 1)
    ask(kept, second)
    assert known(first, second) == [2]


def test_an_hour_that_came_near_meanwhile_keeps_what_it_knows(make, monkeypatch):
    monkeypatch.setattr(kept_hours, "KEPT_MESSAGES", 15)
    kept, near, far = BucketCache(), make(1), make(2)
    ask(kept, near)
    ask(kept, far, near=1)
    assert known(near, far) == [1, 2]
