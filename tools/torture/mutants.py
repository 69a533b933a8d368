"""Good packages with something changed in them: each must be refused, or mean the same.

To ``modpack verify`` a mutant means the same if it is the same, byte by byte: a change may put
there what was there before. To a loader it means the same if what it loads has the same values and
computes the same. Anything else that is accepted is wrong, and so is any error but modpack's own,
and any signal.
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
"""Headers of a zip by their signatures, with their lengths in bytes."""
_ODD = (0, 1, 0xFF, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)
_BATCH = 250
"""Mutants that one child loads: after a signal they are tried one by one."""


@dataclass(frozen=True)
class _Mutant:
    """A package with something changed in it.

    Attributes:
        label: what was changed, for messages.
        package: the name of the good one.
        data: its bytes.
    """

    label: str
    package: str
    data: bytes


def good_packages() -> dict[str, bytes]:
    """Packages of different contents, by a name for each."""
    torch.manual_seed(0)
    small = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    hooked = torch.nn.Linear(3, 3)
    hooked.register_forward_hook(lambda module, args, output: output * 2)
    made: dict[str, bytes] = {}
    models = {"small": small, "hooked": hooked, "wide": torch.nn.Linear(3, 2000)}
    for name, model in models.items():
        buffer = io.BytesIO()
        with modpack.PackageExporter(buffer) as exporter:
            exporter.use_preset("pinned")
            exporter.save_source_string("tiny", "VALUE = 3\n" * 40, is_package=True)
            exporter.save_source_string("tiny.part", "from tiny import VALUE\n")
            exporter.save_text("texts", "é.txt", "naïve " * 50)
            exporter.save_model("model", "model.pkl", model)
        made[name] = buffer.getvalue()
    return made


def verified(times: int, seed: int = 0) -> Tally:
    """Give so many mutants to ``verify``."""
    found, packages = Tally(), good_packages()
    for mutant in _mutants(packages, times, seed):
        found.add(_judged(mutant, lambda m: _if_accepted(m.data), packages))
    return found


def loaded(times: int, verify: str, seed: int = 0) -> Tally:
    """Load so many mutants, in children.

    Args:
        times: how many.
        verify: what is compared with digests, as :func:`modpack.load` takes it. If that is not
            ``"all"``, the numbers in tensors do not count: code, pickles and structure do.
        seed: which mutants.
    """
    found, packages = Tally(), good_packages()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MODPACK_CACHE_DIR"] = f"{folder}/cache"
        place, is_exact = Path(folder) / "mutant.modpack", verify == "all"
        value = partial(_value, place=place, verify=verify, is_exact=is_exact)
        values = {name: value(_Mutant(name, name, data)) for name, data in packages.items()}
        mutants = list(_mutants(packages, times, seed))
        for start in range(0, times, _BATCH):
            found.add(_in_children(mutants[start : start + _BATCH], value, values))
    return found


def _mutants(packages: dict[str, bytes], times: int, seed: int) -> Iterator[_Mutant]:
    """So many of them, spread evenly over the good packages and the kinds of change."""
    chosen, named, changes = random.Random(seed), list(packages.items()), list(_CHANGES)
    for number in range(times):
        name, data = named[number % len(named)]
        change = changes[number // len(named) % len(changes)]
        label = f"{change.__name__.strip('_')} of {name}, number {number}"
        yield _Mutant(label, name, bytes(change(bytearray(data), chosen)))


def _in_children(
    mutants: Sequence[_Mutant], value: Callable[[_Mutant], Any], values: dict[str, Any]
) -> Tally:
    """Judge mutants in one child; if it does not survive that, each in one of its own."""

    def work() -> dict[str, Any]:
        found = Tally()
        for mutant in mutants:
            found.add(_judged(mutant, value, values))
        return vars(found)

    told = Child(work).wait()
    if told.has_ended_well:
        return Tally(told.value["tries"], told.value["wrong"], Counter(told.value["counts"]))
    if len(mutants) == 1:
        return Tally(1, wrong=[f"{mutants[0].label}: {told.error} signal {told.signal}"])
    found = Tally()
    for mutant in mutants:
        found.add(_in_children([mutant], value, values))
    return found


def _judged(mutant: _Mutant, value: Callable[[_Mutant], Any], values: dict[str, Any]) -> Tally:
    """Refused, the same, or wrong."""
    try:
        found = value(mutant)
    except ModpackError:
        return Tally(1, counts=Counter(["refused"]))
    except Exception:  # whatever else it is, is wrong
        return Tally(1, wrong=[f"{mutant.label}: {traceback.format_exc(limit=-1)}"])
    if found != values[mutant.package]:
        return Tally(1, wrong=[f"{mutant.label}: accepted, and means something else"])
    return Tally(1, counts=Counter(["same"]))


def _if_accepted(package: bytes) -> bytes:
    """A package that is accepted.

    Raises:
        ModpackError: it is refused.
    """
    facts = verify_package(io.BytesIO(package), workers=1)
    if not facts.is_accepted:
        raise ModpackError("it is refused")
    return package


def _value(mutant: _Mutant, *, place: Path, verify: str, is_exact: bool) -> list[Any]:
    """What a package loads: sources' values, text, hooks, tensors, and what the model computes."""
    place.write_bytes(mutant.data)
    with (
        warnings.catch_warnings(),
        modpack.PackageImporter(place, verify=verify) as importer,
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
    here, there = (chosen.randrange(len(data) - length) for _ in range(2))
    data[here : here + length] = data[there : there + length]
    return data


def _exchange(data: bytearray, chosen: random.Random) -> bytearray:
    """Two headers of the same kind in each other's place."""
    signature = chosen.choice((_CENTRAL, _LOCAL))
    length = _FIELDS[signature]
    one, other = (chosen.choice(list(_found(data, signature))) for _ in range(2))
    first, second = bytes(data[one : one + length]), bytes(data[other : other + length])
    data[one : one + length], data[other : other + length] = second, first
    return data


def _header_field(data: bytearray, chosen: random.Random) -> bytearray:
    """A number in a header replaced by an odd one."""
    signature = chosen.choice(list(_FIELDS))
    at = chosen.choice(list(_found(data, signature)))
    form, width = chosen.choice((("<H", 2), ("<I", 4)))
    offset = at + 4 + 2 * chosen.randrange((_FIELDS[signature] - 4 - width) // 2 + 1)
    (present,) = struct.unpack_from(form, data, offset)
    value = chosen.choice((*_ODD, present + 1, present - 1)) & (1 << 8 * width) - 1
    struct.pack_into(form, data, offset, value)
    return data


def _appended(data: bytearray, chosen: random.Random) -> bytearray:
    """The package twice, or with something of it behind."""
    start = chosen.choice((0, chosen.randrange(len(data))))
    return data + data[start:]


def _found(data: bytearray, signature: bytes) -> Iterator[int]:
    position = data.find(signature)
    while position >= 0:
        yield position
        position = data.find(signature, position + 1)


_CHANGES = (
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
