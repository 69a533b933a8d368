"""Mutants of good packages, each of which must be rejected or equivalent.

For ``modpack verify``, a mutant is equivalent if its bytes are the same, because a mutation may
write the value that was there. For a loader, it is equivalent if the loaded object has the same
values and outputs. Accepting any other mutant is a failure, and so are signals and errors other
than modpack's own.
"""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from children import Child
from packages import Tally

import modpack
from modpack.errors import ModpackError
from modpack.report.verify import verify_package

_CENTRAL, _LOCAL, _END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
_FIELDS = {_CENTRAL: 46, _LOCAL: 30, _END: 22}
"""Lengths in bytes of zip headers, by signature."""
_ODD = (0, 1, 0xFF, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)
_BATCH = 250
"""Mutants per child. After a signal, each of them is loaded in its own child."""


@dataclass(frozen=True)
class _Mutant:
    """A mutated package.

    Attributes:
        label: Description of the mutation, for messages.
        package: Name of the good package.
        data: Mutated bytes.
    """

    label: str
    package: str
    data: bytes


def good_packages() -> dict[str, bytes]:
    """Return the bytes of packages with different contents, by name."""
    torch.manual_seed(0)
    small = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    hooked = torch.nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, args, output: output * 2)
    packages: dict[str, bytes] = {}
    models = {"small": small, "hooked": hooked, "wide": torch.nn.Linear(3, 2000)}
    for name, model in models.items():
        buffer = io.BytesIO()
        with modpack.PackageExporter(buffer) as exporter:
            exporter.use_preset("pinned")
            exporter.save_source_string("tiny", "VALUE = 3\n" * 40, is_package=True)
            exporter.save_source_string("tiny.part", "from tiny import VALUE\n")
            exporter.save_text("texts", "é.txt", "naïve " * 50)
            exporter.save_model("model", "model.pkl", model)
        packages[name] = buffer.getvalue()
    return packages


def verify_mutants(times: int, seed: int = 0) -> Tally:
    """Verify mutants."""
    tally, packages = Tally(), good_packages()
    for mutant in _mutants(packages, times, seed):
        tally.add(_compare(mutant, lambda m: _require_accepted(m.data), packages))
    return tally


def load_mutants(times: int, verify: str, seed: int = 0) -> Tally:
    """Load mutants in child processes.

    Args:
        times: Number of mutants.
        verify: Option of :func:`modpack.load`. Unless it is ``"full"``, tensor values are ignored.
        seed: Seed of the random generator.
    """
    tally, packages = Tally(), good_packages()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MODPACK_CACHE_DIR"] = f"{folder}/cache"
        path, is_exact = Path(folder) / "mutant.modpack", verify == "full"
        value = partial(_load_value, path=path, verify=verify, is_exact=is_exact)
        values = {name: value(_Mutant(name, name, data)) for name, data in packages.items()}
        mutants = list(_mutants(packages, times, seed))
        for start in range(0, times, _BATCH):
            tally.add(_compare_in_child(mutants[start : start + _BATCH], value, values))
    return tally


def _mutants(packages: dict[str, bytes], times: int, seed: int) -> Iterator[_Mutant]:
    """Yield mutants, evenly distributed over the good packages and the mutations."""
    chosen, named, mutations = random.Random(seed), list(packages.items()), list(_MUTATIONS)
    for number in range(times):
        name, data = named[number % len(named)]
        mutate = mutations[number // len(named) % len(mutations)]
        label = f"{mutate.__name__.strip('_')} of {name}, number {number}"
        yield _Mutant(label, name, bytes(mutate(bytearray(data), chosen)))


def _compare_in_child(
    mutants: Sequence[_Mutant], value: Callable[[_Mutant], Any], values: dict[str, Any]
) -> Tally:
    """Compare mutants in one child. If it crashes, compare each in its own child."""

    def work() -> dict[str, Any]:
        tally = Tally()
        for mutant in mutants:
            tally.add(_compare(mutant, value, values))
        return vars(tally)

    result = Child(work).wait()
    if result.is_success:
        return Tally(result.value["tries"], result.value["wrong"], Counter(result.value["counts"]))
    if len(mutants) == 1:
        return Tally(1, wrong=[f"{mutants[0].label}: {result.error} signal {result.signal}"])
    tally = Tally()
    for mutant in mutants:
        tally.add(_compare_in_child([mutant], value, values))
    return tally


def _compare(mutant: _Mutant, value: Callable[[_Mutant], Any], values: dict[str, Any]) -> Tally:
    """Return whether a mutant is rejected, equivalent, or wrong."""
    try:
        mutated = value(mutant)
    except ModpackError:
        return Tally(1, counts=Counter(["rejected"]))
    except Exception:  # the only valid error is a rejection
        return Tally(1, wrong=[f"{mutant.label}: {traceback.format_exc(limit=-1)}"])
    if mutated != values[mutant.package]:
        return Tally(1, wrong=[f"{mutant.label}: accepted, but not equivalent"])
    return Tally(1, counts=Counter(["equivalent"]))


def _require_accepted(package: bytes) -> bytes:
    """Return a package that ``verify`` accepts.

    Raises:
        ModpackError: If it is rejected.
    """
    facts = verify_package(io.BytesIO(package), workers=1)
    if not facts.passed:
        raise ModpackError("the package is rejected")
    return package


def _load_value(mutant: _Mutant, *, path: Path, verify: str, is_exact: bool) -> list[Any]:
    """Load a package, and return its model, hooks, text, module values, tensors, and outputs."""
    path.write_bytes(mutant.data)
    with (
        warnings.catch_warnings(),
        modpack.PackageImporter(path, verify=verify) as importer,
    ):
        warnings.simplefilter("ignore")
        model = importer.load_model("model", "model.pkl")
        hooks = [str(spec) for spec in importer.hook_specs("model", "model.pkl")]
        text = importer.load_text("texts", "é.txt")
        number = importer.import_module("tiny.part").VALUE
        state = model.state_dict()
        if not is_exact:
            for tensor in state.values():
                tensor.fill_(0.5)
        numbers = [[name, str(t.dtype), t.tolist()] for name, t in state.items()]
        outputs = [module(torch.ones(2, 3)).tolist() for module in (model, *model.children())]
    return json.loads(json.dumps([repr(model), hooks, text, number, numbers, outputs]))


def _flipped_bit(data: bytearray, chosen: random.Random) -> bytearray:
    data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    return data


def _changed_bytes(data: bytearray, chosen: random.Random) -> bytearray:
    for _ in range(chosen.randint(2, 8)):
        data[chosen.randrange(len(data))] = chosen.randrange(256)
    return data


def _truncation(data: bytearray, chosen: random.Random) -> bytearray:
    return data[: chosen.randrange(len(data))]


def _cut_out(data: bytearray, chosen: random.Random) -> bytearray:
    start = chosen.randrange(len(data))
    del data[start : start + chosen.choice((1, 4, 64, 1000))]
    return data


def _insertion(data: bytearray, chosen: random.Random) -> bytearray:
    start = chosen.randrange(len(data) + 1)
    data[start:start] = chosen.randbytes(chosen.choice((1, 4, 64)))
    return data


def _splice(data: bytearray, chosen: random.Random) -> bytearray:
    length = chosen.choice((4, 16, 46, 200))
    target, source = (chosen.randrange(len(data) - length) for _ in range(2))
    data[target : target + length] = data[source : source + length]
    return data


def _exchange(data: bytearray, chosen: random.Random) -> bytearray:
    """Swap two headers of the same kind."""
    signature = chosen.choice((_CENTRAL, _LOCAL))
    length = _FIELDS[signature]
    one, other = (chosen.choice(list(_offsets(data, signature))) for _ in range(2))
    first, second = bytes(data[one : one + length]), bytes(data[other : other + length])
    data[one : one + length], data[other : other + length] = second, first
    return data


def _header_field(data: bytearray, chosen: random.Random) -> bytearray:
    """Replace a number in a header."""
    signature = chosen.choice(list(_FIELDS))
    at = chosen.choice(list(_offsets(data, signature)))
    form, width = chosen.choice((("<H", 2), ("<I", 4)))
    offset = at + 4 + 2 * chosen.randrange((_FIELDS[signature] - 4 - width) // 2 + 1)
    (present,) = struct.unpack_from(form, data, offset)
    value = chosen.choice((*_ODD, present + 1, present - 1)) & (1 << 8 * width) - 1
    struct.pack_into(form, data, offset, value)
    return data


def _appended(data: bytearray, chosen: random.Random) -> bytearray:
    """Append the package, or its end, to itself."""
    start = chosen.choice((0, chosen.randrange(len(data))))
    return data + data[start:]


def _offsets(data: bytearray, signature: bytes) -> Iterator[int]:
    position = data.find(signature)
    while position >= 0:
        yield position
        position = data.find(signature, position + 1)


_MUTATIONS = (
    _flipped_bit,
    _changed_bytes,
    _truncation,
    _cut_out,
    _insertion,
    _splice,
    _exchange,
    _header_field,
    _appended,
)
