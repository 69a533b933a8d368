"""Recording conditions of a run, and applying them in another process."""

from __future__ import annotations

import json
import random

import numpy
import torch

from modpack.examples.conditions import (
    apply_conditions,
    capture_rng_and_modes,
    preserve_random_states,
)


def drawn():
    return torch.rand(1).item(), random.random(), numpy.random.rand()


def test_recorded_conditions_reproduce_random_numbers():
    conditions = json.loads(json.dumps(capture_rng_and_modes()))
    first = drawn()
    drawn()
    with preserve_random_states(), apply_conditions(conditions):
        assert drawn() == first


def test_preserved_random_states_continue_unchanged():
    random.seed(1)
    torch.manual_seed(1)
    numpy.random.seed(1)
    expected = drawn()
    random.seed(1)
    torch.manual_seed(1)
    numpy.random.seed(1)
    with preserve_random_states():
        drawn()
    assert drawn() == expected


def test_modes_are_applied():
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        conditions = json.loads(json.dumps(capture_rng_and_modes()))
    with preserve_random_states(), apply_conditions(conditions):
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()


def test_applied_deterministic_mode_imports_the_compiler_only_for_a_change(clean_python):
    code = """
    import sys, torch
    from modpack.examples.conditions import apply_conditions, capture_rng_and_modes
    recorded = capture_rng_and_modes()
    with apply_conditions(recorded):
        print("torch._dynamo" in sys.modules)
    with apply_conditions({**recorded, "deterministic": True, "deterministic_warn_only": True}):
        print(torch.are_deterministic_algorithms_enabled())
        print(torch.is_deterministic_algorithms_warn_only_enabled())
    """
    assert clean_python(code).stdout == "False\nTrue\nTrue\n"
