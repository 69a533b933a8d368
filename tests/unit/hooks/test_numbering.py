"""Hook numbers in packages are consecutive, regardless of other hooks in the process."""

from __future__ import annotations

from collections import OrderedDict

from modpack.capturing.collect import FIRST_NUMBER, HookIdMap


def test_hook_ids_map_to_numbers_in_order_of_first_use():
    numbers = HookIdMap()
    first = FIRST_NUMBER
    assert numbers.map_ids([17, 4, 17, 90]) == [first, first + 1, first, first + 2]
    assert numbers.map_table({4: "a", 5: "b"}) == OrderedDict({first + 1: "a", first + 3: "b"})
    assert numbers.next_number == first + 4


def test_map_id_returns_other_values_unchanged():
    numbers = HookIdMap()
    assert numbers.map_ids([-1, "name", True]) == [-1, "name", True]
    assert numbers.next_number == FIRST_NUMBER
