"""Numbers of hooks in packages: dense, whatever else has been registered in the process."""

from __future__ import annotations

from collections import OrderedDict

from modpack.hooks.collect import FIRST, HookIdMap, LiveIds


def test_hooks_are_counted_as_they_are_met():
    numbers = HookIdMap()
    assert numbers.of_all([17, 4, 17, 90]) == [FIRST, FIRST + 1, FIRST, FIRST + 2]
    assert numbers.table({4: "a", 5: "b"}) == OrderedDict({FIRST + 1: "a", FIRST + 3: "b"})
    assert numbers.following == FIRST + 4


def test_what_is_no_id_stays():
    numbers = HookIdMap()
    assert numbers.of_all([-1, "name", True]) == [-1, "name", True]
    assert numbers.following == FIRST


def test_outside_of_packages_ids_are_torchs():
    assert LiveIds().of(3) == 3
