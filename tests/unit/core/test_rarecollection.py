"""The collector while modules are imported."""

from __future__ import annotations

import gc

import pytest

from modpack.core.process import raise_gc_threshold, restore_gc_threshold


@pytest.fixture(autouse=True)
def usual():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_the_collector_is_called_less_often_and_then_as_before():
    raise_gc_threshold("a")
    assert gc.get_threshold() == (7000, 10, 10)
    restore_gc_threshold("a")
    assert gc.get_threshold() == (700, 10, 10)


def test_of_several_the_last_to_end_ends_it():
    first, second = object(), object()
    for each in (first, second, first):
        raise_gc_threshold(each)
    restore_gc_threshold(first)
    assert gc.get_threshold() == (7000, 10, 10)
    restore_gc_threshold(second)
    assert gc.get_threshold() == (700, 10, 10)


def test_what_somebody_sets_meanwhile_stays():
    raise_gc_threshold("a")
    gc.set_threshold(50, 5, 5)
    restore_gc_threshold("a")
    assert gc.get_threshold() == (50, 5, 5)


def test_a_collector_that_is_off_stays_off():
    gc.set_threshold(0)
    raise_gc_threshold("a")
    assert gc.get_threshold()[0] == 0
    restore_gc_threshold("a")
    assert gc.get_threshold()[0] == 0
