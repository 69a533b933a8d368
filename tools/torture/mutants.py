"""Good packages with something changed in them: each must be refused, or mean the same.

A mutant means the same if its records have the same names and contents, byte by byte: what was
changed is then padding, or a flag that says nothing. Anything else that is accepted is wrong, and
so is any error but modpack's own.
"""

from __future__ import annotations

import hashlib
import io
import random
import struct
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

import modpack
from modpack.archive.comparing import find_damage
from modpack.archive.manifest import read_manifest
from modpack.archive.reader import open_archive
from modpack.errors import ModpackError

__all__ = ["Mutants", "good_packages", "torture"]

_CENTRAL, _LOCAL, _END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"
_FIELDS = {_CENTRAL: 46, _LOCAL: 30, _END: 22}
"""Headers of a zip by their signatures, with their lengths in bytes."""
_ODD = (0, 1, 0xFF, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000)


@dataclass
class Mutants:
    """What came of them.

    Attributes:
        tries: how many there were.
        refused: how many were refused with an error of modpack's.
        same: how many were accepted and mean the same.
        wrong: what was wrong with the rest, one sentence each.
    """

    tries: int = 0
    refused: int = 0
    same: int = 0
    wrong: list[str] = field(default_factory=list)


def good_packages() -> dict[str, bytes]:
    """Packages of different contents, by a name for each."""
    torch.manual_seed(0)
    small = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    hooked = torch.nn.Linear(2, 2)
    hooked.register_forward_hook(lambda module, args, output: output * 2)
    made: dict[str, bytes] = {}
    for name, model in (("small", small), ("hooked", hooked)):
        buffer = io.BytesIO()
        with modpack.PackageExporter(buffer) as exporter:
            exporter.use_policy("pinned")
            exporter.save_source_string("tiny", "VALUE = 3\n" * 40, is_package=True)
            exporter.save_source_string("tiny.part", "from tiny import VALUE\n")
            exporter.save_text("texts", "é.txt", "naïve " * 50)
            exporter.save_model("model", "model.pkl", model)
        made[name] = buffer.getvalue()
    return made


def contents(package: bytes) -> dict[str, str]:
    """The digests of all records, every one of them verified.

    Raises:
        ModpackError: the package is refused.
    """
    with open_archive(io.BytesIO(package)) as archive:
        manifest = read_manifest(archive)
        if manifest is None:
            raise ModpackError("it has no manifest")
        if damage := find_damage(archive, manifest, archive.names()):
            raise ModpackError(str(damage))
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.names()}


def torture(times: int, seed: int = 0) -> Mutants:
    """Judge so many mutants, spread evenly over the good packages and the kinds of change."""
    found = Mutants()
    chosen = random.Random(seed)
    packages = [(name, data, contents(data)) for name, data in good_packages().items()]
    changes = list(_CHANGES)
    for number in range(times):
        name, data, meaning = packages[number % len(packages)]
        change = changes[number // len(packages) % len(changes)]
        mutant = change(bytearray(data), chosen)
        label = f"{change.__name__.strip('_')} of {name}, number {number}"
        found.tries += 1
        try:
            judged = contents(bytes(mutant))
        except ModpackError:
            found.refused += 1
        except Exception:  # whatever else it is, is wrong
            found.wrong.append(f"{label}: {traceback.format_exc(limit=-1)}")
        else:
            found.same += judged == meaning
            if judged != meaning:
                found.wrong.append(f"{label}: accepted, and means something else")
    return found


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
