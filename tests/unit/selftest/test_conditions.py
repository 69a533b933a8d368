"""Conditions are recorded, and put in place elsewhere."""

from __future__ import annotations

import json
import random

import numpy
import torch

from modpack.selftest.conditions import applied, conditions_now, preserved_random_states


def drawn():
    return torch.rand(1).item(), random.random(), numpy.random.rand()


def test_the_same_random_numbers_are_drawn_under_recorded_conditions():
    conditions = json.loads(json.dumps(conditions_now()))
    first = drawn()
    drawn()
    with preserved_random_states(), applied(conditions):
        assert drawn() == first


def test_random_numbers_go_on_as_if_nothing_had_been_drawn():
    random.seed(1)
    torch.manual_seed(1)
    numpy.random.seed(1)
    expected = drawn()
    random.seed(1)
    torch.manual_seed(1)
    numpy.random.seed(1)
    with preserved_random_states():
        drawn()
    assert drawn() == expected


def test_modes_are_applied():
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        conditions = json.loads(json.dumps(conditions_now()))
    with preserved_random_states(), applied(conditions):
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()


def test_applied_deterministic_mode_imports_the_compiler_only_for_a_change(clean_python):
    code = """
    import sys, torch
    from modpack.selftest.conditions import applied, conditions_now
    recorded = conditions_now()
    with applied(recorded):
        print("torch._dynamo" in sys.modules)
    with applied({**recorded, "deterministic": True, "deterministic_warn_only": True}):
        print(torch.are_deterministic_algorithms_enabled())
        print(torch.is_deterministic_algorithms_warn_only_enabled())
    """
    assert clean_python(code).stdout == "False\nTrue\nTrue\n"
