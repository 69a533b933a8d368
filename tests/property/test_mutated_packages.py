"""Damaged packages are rejected, or have the contents of the good package."""

from __future__ import annotations

import functools
import io
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import modpack
from modpack.errors import ModpackError
from modpack.report.verify import verify_package
from tests.property_settings import examples

Draw = Callable[[st.SearchStrategy[Any]], Any]

CENTRAL, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
HEADER_BYTES = {CENTRAL: 46, LOCAL: 30, END: 22}
ODD = (0, 1, 0xFF, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)


def small() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())


def double(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def hooked() -> torch.nn.Module:
    model = torch.nn.Linear(3, 3)
    model.register_forward_hook(double)
    return model


def wide() -> torch.nn.Module:
    return torch.nn.Linear(3, 2000)


@functools.cache
def packaged(build: Callable[[], torch.nn.Module]) -> bytes:
    """Return a good package with a model, modules, and a text."""
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.use_preset("pinned")
        exporter.extern("tests.**")
        exporter.save_source_string("tiny", "VALUE = 3\n" * 40, is_package=True)
        exporter.save_source_string("tiny.part", "from tiny import VALUE\n")
        exporter.save_text("texts", "é.txt", "naïve " * 50)
        exporter.save_model("model", "model.pkl", build())
    return buffer.getvalue()


def below(limit: int) -> st.SearchStrategy[int]:
    return st.integers(0, limit - 1)


def flip_bit(data: bytearray, draw: Draw) -> bytearray:
    data[draw(below(len(data)))] ^= 1 << draw(below(8))
    return data


def change_bytes(data: bytearray, draw: Draw) -> bytearray:
    for _ in range(draw(st.integers(2, 8))):
        data[draw(below(len(data)))] = draw(below(256))
    return data


def truncate(data: bytearray, draw: Draw) -> bytearray:
    return data[: draw(below(len(data)))]


def cut_out(data: bytearray, draw: Draw) -> bytearray:
    start = draw(below(len(data)))
    del data[start : start + draw(st.sampled_from((1, 4, 64, 1000)))]
    return data


def insert(data: bytearray, draw: Draw) -> bytearray:
    start = draw(below(len(data) + 1))
    data[start:start] = draw(st.binary(min_size=1, max_size=64))
    return data


def copy_region(data: bytearray, draw: Draw) -> bytearray:
    length = draw(st.sampled_from((4, 16, 46, 200)))
    target, source = (draw(below(len(data) - length)) for _ in range(2))
    data[target : target + length] = data[source : source + length]
    return data


def swap_headers(data: bytearray, draw: Draw) -> bytearray:
    signature = draw(st.sampled_from((CENTRAL, LOCAL)))
    length = HEADER_BYTES[signature]
    one, other = (draw(st.sampled_from(offsets(data, signature))) for _ in range(2))
    first, second = bytes(data[one : one + length]), bytes(data[other : other + length])
    data[one : one + length], data[other : other + length] = second, first
    return data


def change_header_field(data: bytearray, draw: Draw) -> bytearray:
    signature = draw(st.sampled_from(list(HEADER_BYTES)))
    at = draw(st.sampled_from(offsets(data, signature)))
    form, width = draw(st.sampled_from((("<H", 2), ("<I", 4))))
    offset = at + 4 + 2 * draw(below((HEADER_BYTES[signature] - 4 - width) // 2 + 1))
    (present,) = struct.unpack_from(form, data, offset)
    value = draw(st.sampled_from((*ODD, present + 1, present - 1))) & (1 << 8 * width) - 1
    struct.pack_into(form, data, offset, value)
    return data


def append_itself(data: bytearray, draw: Draw) -> bytearray:
    return data + data[draw(below(len(data))) :]


def offsets(data: bytearray, signature: bytes) -> list[int]:
    def found() -> Iterator[int]:
        position = data.find(signature)
        while position >= 0:
            yield position
            position = data.find(signature, position + 1)

    return list(found())


MUTATIONS = (
    *(flip_bit, change_bytes, truncate, cut_out, insert, copy_region),
    *(swap_headers, change_header_field, append_itself),
)


@st.composite
def mutants(draw: Draw) -> tuple[bytes, bytes]:
    """Draw a good package and a changed copy of it."""
    good = packaged(draw(st.sampled_from((small, hooked, wide))))
    mutate = draw(st.sampled_from(MUTATIONS))
    return good, bytes(mutate(bytearray(good), draw))


@examples(150)
@given(mutants())
def test_verify_accepts_no_changed_package(mutant):
    good, changed = mutant
    try:
        facts = verify_package(io.BytesIO(changed))
    except ModpackError:
        return
    assert changed == good or not facts.passed


def contents(package: bytes, verify: str) -> list[Any]:
    """Load a package and return all values that it contains.

    Unless every record is verified, the values of tensors are not compared.
    """
    buffer = io.BytesIO(package)
    with warnings.catch_warnings(), modpack.PackageImporter(buffer, verify=verify) as importer:
        warnings.simplefilter("ignore")
        model = importer.load_model("model", "model.pkl")
        hooks = [str(spec) for spec in importer.hook_specs("model", "model.pkl")]
        text = importer.load_text("texts", "é.txt")
        number = importer.import_module("tiny.part").VALUE
        state = model.state_dict()
        if verify != "full":
            for tensor in state.values():
                tensor.fill_(0.5)
        values = [[name, str(each.dtype), each.tolist()] for name, each in state.items()]
        outputs = [module(torch.ones(2, 3)).tolist() for module in (model, *model.children())]
    return [repr(model), hooks, text, number, values, outputs]


good_contents = functools.cache(contents)


@pytest.mark.parametrize("verify", ["full", "code"])
@examples(100)
@given(mutant=mutants())
def test_load_returns_contents_of_good_package_or_rejects(verify, mutant):
    good, changed = mutant
    try:
        found = contents(changed, verify)
    except ModpackError:
        return
    assert found == good_contents(good, verify)
