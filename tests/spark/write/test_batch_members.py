"""Messages as runs hold them: any of them are the batch that `pyromq.record` makes of the same."""

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyromq import speedups
from pyromq.record import BatchMember, encode_batch
from pyromq.spark.write.batch_members import BatchMembers

rows = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(min_size=1, max_size=60), st.text("aü\x01\x02", max_size=9)),
    max_size=12,
)
ONE = (np.array([0], np.int32), (np.array([0, 3], np.int32), b"abc"), (np.array([0, 1], np.int32), b"t"))


def members_of(given_rows, before=0):
    """Return members whose arrays are parts of longer ones."""
    bodies = pa.array([b"no"] * before + [body for _, body, _ in given_rows], pa.binary())[before:]
    texts = pa.array([b"neither"] * before + [text.encode() for _, _, text in given_rows], pa.binary())[before:]
    return BatchMembers(np.array([flag for flag, _, _ in given_rows], np.int64), bodies, texts)


@given(rows, st.integers(0, 3), st.data())
def test_any_of_them_are_a_batch(given_rows, before, data):
    first = data.draw(st.integers(0, len(given_rows)))
    last = data.draw(st.integers(first, len(given_rows)))
    members = members_of(given_rows, before)
    expected = encode_batch([BatchMember(*row) for row in given_rows[first:last]])
    assert bytes(members.between(first, last)) == expected
    assert members.ends[last] - members.ends[first] == len(expected)


@given(rows.filter(bool), st.data())
def test_some_of_them_are_taken_in_order(given_rows, data):
    numbers = sorted(data.draw(st.sets(st.integers(0, len(given_rows) - 1), min_size=1)))
    taken = members_of(given_rows, 2).take(np.array(numbers))
    expected = encode_batch([BatchMember(*given_rows[number]) for number in numbers])
    assert bytes(taken.between(0, len(taken))) == expected


@pytest.mark.skipif(not speedups.is_active, reason="the compiled parts are not built")
@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, np.array([], np.int32)),
        (1, (np.array([0, 4], np.int32), b"abc")),
        (1, (np.array([2, 1], np.int32), b"abc")),
        (1, (np.array([-1, 1], np.int32), b"abc")),
        (1, (np.array([0], np.int32), b"abc")),
        (2, (np.array([0, 32768], np.int32), b"t" * 32768)),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(place, wrong):
    from pyromq.speedups.batches import write_members

    columns = list(ONE)
    columns[place] = wrong
    assert write_members(*ONE, 0, 1) == encode_batch([BatchMember(0, b"abc", "t")])
    for first, last in ((0, 1), (0, 2), (-1, 1), (1, 0)):
        with pytest.raises(ValueError, match=r"end|flags"):
            write_members(*columns, first, last)
