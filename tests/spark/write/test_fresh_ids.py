"""Message ids of many rows: those that `UniqueIds` would make, and none twice."""

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from pyromq.message_id import UniqueIds
from pyromq.spark.write.unique_ids import fresh_ids
from pyromq.testing import FakeClock


@pytest.mark.parametrize("address", ["10.1.2.3", "fe80::1"])
def test_ids_are_those_that_are_made_one_by_one(address):
    clock = FakeClock()
    unique = UniqueIds(address, clock)
    first = unique.next()
    found = fresh_ids(unique, 5000)
    found.validate(full=True)
    assert found.type == pa.string()
    head = unique.head(clock.now_ms())
    assert [first, *found.to_pylist(), unique.next()] == [f"{head}{number:04X}" for number in range(5002)]


def test_no_id_comes_twice_though_the_clock_stands_still():
    unique = UniqueIds("10.1.2.3", FakeClock())
    found = fresh_ids(unique, 150_000).to_pylist() + fresh_ids(unique, 50_000).to_pylist()
    assert len(set(found)) == len(found)


def test_no_rows_have_no_ids():
    assert fresh_ids(UniqueIds("10.1.2.3", FakeClock()), 0).to_pylist() == []
