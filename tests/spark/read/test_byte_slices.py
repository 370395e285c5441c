"""Values and slices at many places of a block of bytes."""

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import numpy as np

from pyromq.spark.read.byte_slices import blocks, list_offsets, slices, strings

DATA = np.frombuffer(bytes(range(60)), np.uint8)


def ints(*values):
    return np.array(values, np.int64)


def test_values_are_read_at_any_place():
    assert blocks(DATA, ints(0, 3, 56), ">i4").tolist() == [0x00010203, 0x03040506, 0x38393A3B]
    assert blocks(DATA, ints(), ">i4").tolist() == []


@pytest.mark.parametrize("end", [30, 60])
def test_slices_of_all_lengths_around_the_inline_limit(end):
    at = ints(*(end - size for size in range(30)))
    assert slices(DATA, at, ints(*range(30))).to_pylist() == [bytes(range(end - size, end)) for size in range(30)]


def test_bytes_that_are_no_text_are_replaced():
    data = np.frombuffer(b"abc\xffd", np.uint8)
    assert strings(data, ints(0, 2), ints(2, 3)).to_pylist() == ["ab", "c\ufffdd"]


def test_lists_without_items_are_empty():
    assert list_offsets(ints(0, 0, 2), 4).to_pylist() == [0, 2, 2, 3, 3]
