"""Pauses of cyclic garbage collection."""

from __future__ import annotations

import gc
import os
import sys
import threading

import pytest

from modpack.core.process import gc_paused, gc_resumed


@pytest.fixture(autouse=True)
def enabled():
    gc.enable()
    yield
    gc.enable()


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_pauses_can_be_nested():
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_pause_ends_after_error():
    with pytest.raises(ValueError, match="inside"), gc_paused():
        raise ValueError("inside")
    assert gc.isenabled()


def test_disabled_collector_stays_disabled():
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled()


def test_pauses_of_threads_can_overlap():
    began, may_end = threading.Event(), threading.Event()

    def work():
        with gc_paused():
            began.set()
            may_end.wait(60)

    with gc_paused():
        thread = in_thread(work)
        assert began.wait(60)
    assert not gc.isenabled()
    may_end.set()
    thread.join()
    assert gc.isenabled()


def test_resumed_code_controls_collector():
    with gc_paused():
        with gc_paused(), gc_resumed():
            assert gc.isenabled()
        assert not gc.isenabled()
        with gc_resumed():
            gc.disable()
    assert not gc.isenabled()


def test_resume_without_pause_changes_nothing():
    with gc_resumed():
        assert gc.isenabled()
    assert gc.isenabled()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_drops_pauses_of_other_threads():
    began, may_end = threading.Event(), threading.Event()

    def work():
        with gc_paused():
            began.set()
            may_end.wait(60)

    thread = in_thread(work)
    assert began.wait(60)
    child = os.fork()
    if not child:
        os._exit(0 if gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    may_end.set()
    thread.join()


def test_end_of_pause_collects_youngest_generation_only():
    searched = []

    def note(phase, info):
        if phase == "start":
            searched.append(info["generation"])

    gc.collect()  # no collection is due
    gc.callbacks.append(note)
    try:
        with gc_paused():
            many = [[number] for number in range(20_000)]
        few = [[number] for number in range(10)]
    finally:
        gc.callbacks.remove(note)
    assert searched == [0]
    assert len(many) + len(few) == 20_010


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="Python 3.12 starts with frozen objects, like a user's"
)
def test_pause_that_keeps_all_makes_objects_old():
    with gc_paused(keeps_all=True):
        kept = [[] for _ in range(2000)]
    young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation)}
    assert young.isdisjoint(map(id, kept))
    assert gc.get_freeze_count() == 0


def test_pause_that_keeps_all_leaves_frozen_objects_frozen():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_paused(keeps_all=True):
            pass
        assert gc.get_freeze_count() >= frozen - 100 > 0
    finally:
        gc.unfreeze()
