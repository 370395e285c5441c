"""Messages are found by the hash of their key, however they came."""

import random

import pytest
from tests.seed import seed_of_the_day

from pyromq.store.timers import timer_bucket
from pyromq.store.timers.timer_bucket import KeyHashes


@pytest.mark.parametrize("longest", [1, 2, 7, 64, 32_768])
def test_finds_every_message_of_a_hash_in_order_of_arrival(monkeypatch, longest):
    monkeypatch.setattr(timer_bucket, "LONGEST_RUN", longest)
    choose = random.Random(seed_of_the_day())
    hashes, known = [], KeyHashes()
    while len(hashes) < 300:
        more = [choose.choice([0, 1, 2, 0xFFFFFFFF, choose.getrandbits(32)]) for _ in range(choose.randrange(1, 20))]
        hashes += more
        known.add(more)
        assert len(known) == len(hashes)
    for each in {*hashes, 3}:
        assert list(known.numbers(each)) == [number for number, key_hash in enumerate(hashes) if key_hash == each]


def test_there_are_few_runs_and_none_is_long():
    known = KeyHashes()
    for number in range(5_000):
        known.add([number * 2654435761 & 0xFFFFFFFF])
    lengths = [len(run) for run in known._runs]
    assert sum(lengths) == 5_000
    assert len(lengths) <= 13  # as many as it has binary digits
    for _ in range(20):
        known.add(range(4_096))
    assert max(len(run) for run in known._runs) <= timer_bucket.LONGEST_RUN


def test_more_may_come_while_one_is_looked_for():
    known = KeyHashes()
    known.add([7, 8, 7])
    found = known.numbers(7)
    assert next(found) == 0
    known.add([7, 7, 7, 7])
    assert list(found) == [2]
