"""The record of call signatures, and values flattened by name."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from typing import NamedTuple

import pytest

from modpack.core.call_signature import (
    CallSignature,
    ContainerSpec,
    ValueSpec,
    build_arguments,
    call_signatures_from_json,
    call_signatures_to_json,
    flatten_values,
    name_arguments,
    name_values,
)

X = ValueSpec("x", ("x",), "tensor", "float32", ("batch", 4))
SCALE = ValueSpec("scale", ("scale",), "float", required=False)
STATE = (
    ValueSpec("state.0", ("state", 0), "tensor", "float32", (2,)),
    ValueSpec("state.h", ("state", 1, "h"), "int"),
)
SIGNATURE = CallSignature(
    ("net", "model.pkl"),
    ("x", "scale", "state"),
    2,
    (X, SCALE, *STATE),
    (ValueSpec("output", (), "tensor", "float32", ("batch",)),),
    (
        ContainerSpec(("state",), "tuple", (0, 1)),
        ContainerSpec(("state", 1), "dict", ("h",)),
    ),
    batch="batch",
)


class Pair(NamedTuple):
    first: int
    second: int


@dataclasses.dataclass
class Scored:
    score: int
    label: str = "cat"


def as_json(signature=SIGNATURE, **changes):
    document = call_signatures_to_json([signature])
    document["calls"][0].update(changes)
    return json.loads(json.dumps(document))


def test_call_signatures_survive_json():
    assert call_signatures_from_json(as_json()) == (SIGNATURE,)


def test_call_signature_as_text_names_types_and_optional_values():
    assert str(SIGNATURE) == (
        "(x: float32 (batch, 4), scale: float = ..., state.0: float32 (2,), state.h: int)"
        " -> output: float32 (batch,)"
    )


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"positional": 4}, "more positional arguments than arguments"),
        ({"parameters": ["x"], "positional": 1}, "'scale' is part of no container"),
        ({"parameters": ["x", "scale", "state", "y"]}, "'y' is not described"),
        ({"containers": as_json()["calls"][0]["containers"][:1]}, "'state.1' is not described"),
        ({"containers": []}, "'state' is not described"),
        ({"inputs": as_json()["calls"][0]["inputs"][:3]}, "'state.1.h' is not described"),
        (
            {"outputs": [{**as_json()["calls"][0]["outputs"][0], "path": ["a"]}]},
            "'a' is part of no container",
        ),
        ({"inputs": [as_json()["calls"][0]["inputs"][0]] * 2}, "two values have the same name"),
        ({"outputs": [{**as_json()["calls"][0]["outputs"][0], "type": "int"}]}, "'output' needs"),
        ({"outputs": [{**as_json()["calls"][0]["outputs"][0], "shape": None}]}, "'output' needs"),
    ],
)
def test_call_signatures_reject_contradictions(changes, problem):
    with pytest.raises(ValueError, match=problem):
        call_signatures_from_json(as_json(**changes))


@pytest.mark.parametrize("shape", [[-1], [1.5], [True], [None], "4"])
def test_call_signatures_reject_shapes_of_other_types(shape):
    spec = {**as_json()["calls"][0]["outputs"][0], "shape": shape}
    with pytest.raises(TypeError, match="shape"):
        call_signatures_from_json(as_json(outputs=[spec]))


def test_call_signatures_reject_an_object_listed_twice():
    with pytest.raises(ValueError, match="listed twice"):
        call_signatures_from_json(call_signatures_to_json([SIGNATURE, SIGNATURE]))


def test_flatten_values_keeps_objects_of_arguments_whole():
    value = (Pair(1, 2), Scored(3), OrderedDict(a=4), {"b": [5]})
    assert list(flatten_values(value, ("x",), objects=False).values) == [
        *[("x", 0), ("x", 1), ("x", 2), ("x", 3, "b", 0)]
    ]


def test_flatten_values_splits_objects_of_outputs():
    flat = flatten_values((Pair(1, 2), Scored(3), OrderedDict(a=4)), objects=True)
    assert list(flat.values) == [
        *[(0, "first"), (0, "second"), (1, "score"), (1, "label"), (2, "a")]
    ]
    assert [each.type for each in flat.containers] == ["tuple", "object", "object", "dict"]


@pytest.mark.parametrize("value", [{1.5: 2}, {"1": 2, 1: 3}, {-1: 2}, [0] * 1001, b"ab", "ab"])
def test_flatten_values_keeps_values_without_clear_names_whole(value):
    assert flatten_values(value, objects=True).values == {(): value}


def test_flatten_values_ends_in_a_reference_cycle():
    value = [1]
    value.append(value)
    assert list(flatten_values(value, objects=False).values) == [(0,), (1,)]


def test_name_values_distinguishes_keys_with_dots():
    assert list(name_values([("a.b",), ("a", "b")]).values()) == ["a.b", "a.b_2"]


def test_arguments_are_rebuilt_from_their_names():
    args, kwargs = (1, 2.5), {"state": (3, {"h": 4})}
    values = name_arguments(SIGNATURE, args, kwargs)
    assert values == {"x": 1, "scale": 2.5, "state.0": 3, "state.h": 4}
    assert build_arguments(SIGNATURE, values) == (args, kwargs)


def test_arguments_after_an_omitted_one_are_passed_by_name():
    signature = SIGNATURE._replace(positional=3)
    values = {"x": 1, "state.0": 3, "state.h": 4}
    assert build_arguments(signature, values) == ((1,), {"state": (3, {"h": 4})})


def test_empty_container_is_rebuilt():
    signature = CallSignature(("", "f"), ("x",), 1, (), (), (ContainerSpec(("x",), "list", ()),))
    assert build_arguments(signature, {}) == (([],), {})
