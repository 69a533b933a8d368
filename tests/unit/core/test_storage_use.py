"""How much of a storage some views use: never less than they do, and no more than they reach."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modpack.core.tensors import LARGE, StorageView, bytes_used, is_underused


@st.composite
def views(draw: st.DrawFn) -> StorageView:
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    stride = tuple(draw(st.integers(0, 6)) for _ in shape)
    return StorageView(draw(st.integers(0, 9)), shape, stride, draw(st.sampled_from([1, 2, 4])))


def touched(view: StorageView) -> set[int]:
    """The bytes of a view, one by one."""
    found = set()
    for place in itertools.product(*map(range, view.shape)):
        steps = zip(place, view.stride, strict=True)
        start = (view.offset + sum(n * step for n, step in steps)) * view.item_bytes
        found.update(range(start, start + view.item_bytes))
    return found


@given(st.lists(views(), max_size=4))
def test_no_byte_that_is_used_is_counted_as_unused(some):
    assert bytes_used(some) >= len(set().union(*map(touched, some)))


@given(views())
def test_view_spans_first_to_last_byte(view):
    bytes_of_it, (start, end) = touched(view), view.reach
    assert (start, end) == (min(bytes_of_it), max(bytes_of_it) + 1) if bytes_of_it else start == end


@pytest.mark.parametrize(
    ("some", "used"),
    [
        ([], 0),
        ([StorageView(5, (), (), 8)], 8),
        ([StorageView(0, (3, 0), (1, 1), 4)], 0),
        ([StorageView(0, (100,), (0,), 4)], 4),
        ([StorageView(0, (10,), (10,), 4)], 40),
        ([StorageView(0, (10, 10), (1, 10), 4)], 400),
        ([StorageView(0, (10,), (1,), 4), StorageView(5, (10,), (1,), 4)], 60),
        ([StorageView(0, (10,), (1,), 4), StorageView(0, (20,), (1,), 2)], 40),
    ],
)
def test_several_views_of_a_storage_count_together(some, used):
    assert bytes_used(some) == used


@pytest.mark.parametrize(
    ("size", "used", "is_told"),
    [
        (LARGE, 0, True),
        (LARGE - 1, 0, False),
        (LARGE, 1, False),
        (10 * LARGE, 5 * LARGE, False),
        (10 * LARGE, 5 * LARGE - 1, True),
        (10 * LARGE, 10 * LARGE, False),
    ],
)
def test_storage_is_underused_above_size_and_ratio(size, used, is_told):
    assert is_underused(size, used) is is_told
