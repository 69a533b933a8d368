"""The collector while modules are imported."""

from __future__ import annotations

import gc

import pytest

from modpack.core.process import begin_collecting_rarely, end_collecting_rarely


@pytest.fixture(autouse=True)
def usual():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_the_collector_is_called_less_often_and_then_as_before():
    begin_collecting_rarely("a")
    assert gc.get_threshold() == (7000, 10, 10)
    end_collecting_rarely("a")
    assert gc.get_threshold() == (700, 10, 10)


def test_of_several_the_last_to_end_ends_it():
    first, second = object(), object()
    for each in (first, second, first):
        begin_collecting_rarely(each)
    end_collecting_rarely(first)
    assert gc.get_threshold() == (7000, 10, 10)
    end_collecting_rarely(second)
    assert gc.get_threshold() == (700, 10, 10)


def test_what_somebody_sets_meanwhile_stays():
    begin_collecting_rarely("a")
    gc.set_threshold(50, 5, 5)
    end_collecting_rarely("a")
    assert gc.get_threshold() == (50, 5, 5)


def test_a_collector_that_is_off_stays_off():
    gc.set_threshold(0)
    begin_collecting_rarely("a")
    assert gc.get_threshold()[0] == 0
    end_collecting_rarely("a")
    assert gc.get_threshold()[0] == 0
