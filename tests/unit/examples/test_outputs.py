"""Flattening of outputs, independent of their classes, and their comparison."""

from __future__ import annotations

import array
import collections
import dataclasses
import enum

import pytest
import torch
import torch.masked

from modpack.examples.outputs import compare, flatten_output

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Scores:
    best: torch.Tensor
    names: tuple[str, ...] = ("a", "b")


class Color(enum.Enum):
    RED = 1


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


def paths(output):
    return [leaf.path for leaf in flatten_output(output)]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (Pair(1, [2]), ["output", "output.first", "output.second", "output.second[0]"]),
        ({"a": None, 3: "x"}, ["output", "output['a']", "output[3]"]),
        (Slotted(1.5), ["output", "output.held"]),
        (
            Scores(torch.zeros(1)),
            ["output", "output.best", "output.names", "output.names[0]", "output.names[1]"],
        ),
        ({"x", "y"}, ["output", "output{0}", "output{1}"]),
        (Color.RED, ["output"]),
        (torch.zeros(2, 3).shape, ["output"]),
    ],
)
def test_container_shows_its_parts_by_path(output, expected):
    assert paths(output) == expected


def test_distribution_shows_its_parameters():
    normal = torch.distributions.Normal(0.0, 1.0)
    assert {"output.loc", "output.scale"} <= set(paths(normal))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.eye(3).to_sparse_csr(),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, 3, requires_grad=True).t(),
        torch.zeros(0, 4),
        torch.tensor(1.0),
        torch.ones(2, device="meta"),
        torch.nn.Parameter(torch.ones(1)),
    ],
)
def test_every_kind_of_tensor_equals_itself(tensor):
    assert compare(flatten_output(tensor), flatten_output(tensor)) == []


def test_numbers_are_compared_by_their_bits():
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert compare(flatten_output(nan), flatten_output(nan.clone())) == []
    assert compare(flatten_output(float("nan")), flatten_output(float("nan"))) == []
    assert len(compare(flatten_output(zero), flatten_output(-zero))) == 1


def test_difference_shows_path_and_size():
    one, two = torch.zeros(2, 3), torch.zeros(2, 3)
    two[1, 2], two[1, 1] = 0.5, 0.25
    (difference,) = compare(flatten_output({"y": one}), flatten_output({"y": two}))
    assert not difference.is_structural
    assert str(difference) == (
        "output['y']: 2 of 6 elements differ, the first at [1, 1]: expected 0.0, found 0.25; "
        "the largest difference is 0.5"
    )


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2).double()),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        (1, 1.0),
        (torch.eye(2), torch.eye(2).to_sparse()),
    ],
)
def test_another_type_shape_or_length_is_structural(expected, found):
    assert all(
        each.is_structural for each in compare(flatten_output(expected), flatten_output(found))
    )
    assert compare(flatten_output(expected), flatten_output(found))


def test_arrays_of_other_libraries_are_compared_by_their_memory():
    one, two = array.array("d", [1.0, 2.0]), array.array("d", [1.0, 3.0])
    assert compare(flatten_output(one), flatten_output(one[:])) == []
    (difference,) = compare(flatten_output(one), flatten_output(two))
    assert "the first at [1]: expected 2.0, found 3.0" in difference.text


def test_cyclic_output_is_flattened():
    ring: list[object] = [1]
    ring.append(ring)
    assert flatten_output(ring)[-1].structure == "the same as output"


def test_addresses_and_namespace_are_not_compared():
    def text(where, module):
        return flatten_output(f"<{module}.Net at {where}>")

    packaged = text("0x7f5566778899", f"modpack.packages.p{32 * 'a'}_2.shop")
    assert compare(text("0x7f0011223344", "shop"), packaged) == []


def test_leaves_are_independent_of_the_output():
    tensor = torch.zeros(2)
    leaves = flatten_output(tensor)
    tensor.add_(1)
    assert compare(leaves, flatten_output(torch.zeros(2))) == []


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} is refused")


class Unreadable:
    __slots__ = ()

    @property
    def __dict__(self):
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (torch.nn.UninitializedParameter(), "UninitializedParameter torch.float32"),
        (torch.ones(2).as_subclass(Refusing), "Refusing torch.float32 [2]"),
        (Unreadable(), "Unreadable, which raises RuntimeError"),
    ],
)
def test_output_with_raising_properties_shows_its_type(output, expected):
    assert [leaf.structure for leaf in flatten_output([output])][1:] == [expected]


def test_tensor_subclass_is_compared_by_inner_tensors():
    with pytest.warns(UserWarning, match="prototype"):
        masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    assert paths(masked)[0] == "output" and len(paths(masked)) == 3


def test_outputs_of_another_device_are_compared_with_tolerances():
    here = flatten_output({"a": torch.ones(2), "b": 3})
    there = [leaf._replace(device="cuda" if leaf.device else None) for leaf in here]
    near = flatten_output({"a": torch.ones(2) + 1e-7, "b": 3})
    far = flatten_output({"a": torch.ones(2) + 1e-3, "b": 4})
    assert [each.is_structural for each in compare(there, near)] == [True]
    assert compare(there, near, any_device=True) == []
    assert [each.path for each in compare(there, far, any_device=True)] == [
        "output['a']",
        "output['b']",
    ]
    assert len(compare(here, near, any_device=True)) == 1  # the same device: bit by bit
    other = flatten_output({"a": torch.ones(3), "b": 3})
    assert [each.is_structural for each in compare(there, other, any_device=True)] == [True]
