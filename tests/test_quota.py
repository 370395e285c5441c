"""Shares of a limit: who uses little always finds room, and nobody uses more than a part of what the others leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import LimitReached
from pyromq.quota import Quota, fair_share


def test_a_holder_may_use_a_tenth_of_what_the_others_leave():
    quota = Quota("maxThings", 100)
    quota.acquire("greedy", 10, text="too many")
    with pytest.raises(LimitReached, match=r"10 are its share, or raise maxThings \(now 100\)") as refused:
        quota.acquire("greedy", text="10 are its share")
    assert refused.value.setting == "maxThings"
    assert (quota.used, quota.of("greedy"), len(quota)) == (10, 10, 1)
    quota.acquire("next", 9, text="too many")
    with pytest.raises(LimitReached):
        quota.acquire("next", text="too many")


def test_each_holder_finds_room_for_one_unless_the_limit_is_hard():
    for is_hard in (False, True):
        quota = Quota("maxThings", 2, is_hard=is_hard)
        quota.acquire("a", text="")
        quota.acquire("b", text="")
        if is_hard:
            with pytest.raises(LimitReached):
                quota.acquire("c", text="")
        else:
            quota.acquire("c", text="")


def test_room_may_be_counted_elsewhere():
    quota = Quota("maxThings", 100)
    quota.acquire("a", 3, text="", free=30)
    with pytest.raises(LimitReached):
        quota.acquire("a", text="", free=27)


def test_existing_amounts_count_beyond_a_share_and_what_ends_is_forgotten():
    quota = Quota("maxThings", 10, shares=2)
    quota.add("a", 20)
    assert quota.used == 20
    quota.release("a", 5)
    assert quota.of("a") == 15
    quota.end("a")
    quota.end("unknown")
    assert (quota.used, len(quota)) == (0, 0)


def test_the_idlest_is_the_one_that_changed_least_recently():
    quota = Quota("maxThings", 10)
    quota.hold("a", 5)
    quota.hold("b", 5)
    assert quota.idlest() is None
    quota.hold("a", 6)
    assert quota.idlest() == "b"
    quota.hold("b", 0)
    assert quota.idlest() is None


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 100), st.integers(0, 100))
def test_a_share_is_a_part_of_the_room(limit, others, shares, least):
    share = fair_share(limit, others, shares=shares, least=least)
    assert share >= least
    assert share == least or share * shares <= limit - others


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=30))
def test_the_sum_is_that_of_all_holders(changes):
    quota = Quota("maxThings", 50)
    amounts = dict.fromkeys("abc", 0)
    for holder, amount in changes:
        quota.hold(holder, amount)
        amounts[holder] = amount
    assert quota.used == sum(amounts.values())
    assert all(quota.of(holder) == amount for holder, amount in amounts.items())
