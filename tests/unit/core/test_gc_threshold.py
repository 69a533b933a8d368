"""The GC threshold during imports."""

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


def test_gc_threshold_is_raised_and_restored():
    raise_gc_threshold("a")
    assert gc.get_threshold() == (7000, 10, 10)
    restore_gc_threshold("a")
    assert gc.get_threshold() == (700, 10, 10)


def test_gc_threshold_is_restored_by_last_importer():
    first, second = object(), object()
    for each in (first, second, first):
        raise_gc_threshold(each)
    restore_gc_threshold(first)
    assert gc.get_threshold() == (7000, 10, 10)
    restore_gc_threshold(second)
    assert gc.get_threshold() == (700, 10, 10)


def test_gc_threshold_set_meanwhile_is_kept():
    raise_gc_threshold("a")
    gc.set_threshold(50, 5, 5)
    restore_gc_threshold("a")
    assert gc.get_threshold() == (50, 5, 5)


def test_disabled_collector_stays_disabled():
    gc.set_threshold(0)
    raise_gc_threshold("a")
    assert gc.get_threshold()[0] == 0
    restore_gc_threshold("a")
    assert gc.get_threshold()[0] == 0
