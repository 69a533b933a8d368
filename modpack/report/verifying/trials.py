"""What a trial left in a package, decoded without torch."""

from __future__ import annotations

from dataclasses import dataclass

from modpack.archive.base import Archive, RecordVerifier
from modpack.core.jsonvalues import (
    as_list,
    as_mapping,
    as_number,
    as_optional_text,
    as_text,
    as_truth,
)
from modpack.core.planjson import Json
from modpack.core.tensors import ITEM_BYTES
from modpack.core.trialrecord import CaseRecords
from modpack.report.recorded import checking, read_document

__all__ = ["TrialOutput", "TrialTensor", "read_conditions", "read_output"]

_TRUTHS = ("grad", "inference", "deterministic", "deterministic_warn_only", "mkldnn")
_TEXTS = ("default_dtype", "default_device", "matmul_precision")
_MOST_ELEMENTS = 2**63


@dataclass(frozen=True)
class TrialTensor:
    """A tensor of a recorded output.

    Attributes:
        record: holds its elements.
        size_bytes: how many bytes these are; None if its type is not known here.
    """

    record: str
    size_bytes: int | None


@dataclass(frozen=True)
class TrialOutput:
    """A recorded output.

    Attributes:
        tensors: its tensors, in order.
    """

    tensors: tuple[TrialTensor, ...]


def read_output(archive: Archive, verify: RecordVerifier, case: CaseRecords) -> TrialOutput:
    """What an example is known to return.

    Raises:
        ArchiveError: the record is missing or damaged.
    """
    with checking(archive, case.output):
        document = read_document(archive, case.output, verify)
        leaves = [as_mapping(each, "a leaf") for each in as_list(document["leaves"], "leaves")]
        for leaf in leaves:
            as_text(leaf["path"], "a path")
            as_text(leaf["structure"], "a structure")
            as_optional_text(leaf["value"], "a value")
        return TrialOutput(tuple(_tensor(leaf["tensor"]) for leaf in leaves if "tensor" in leaf))


def read_conditions(archive: Archive, verify: RecordVerifier, case: CaseRecords) -> None:
    """Check what is recorded of the circumstances of an example's run.

    Raises:
        ArchiveError: the record is missing or damaged.
    """
    with checking(archive, case.conditions):
        document = read_document(archive, case.conditions, verify)
        for key in _TRUTHS:
            as_truth(document[key], key)
        for key in _TEXTS:
            as_text(document[key], key)
        as_number(document["threads"], "threads")
        for dtype in as_mapping(document["autocast"], "autocast").values():
            as_text(dtype, "a dtype")
        _check_random_states(as_mapping(document["random"], "random"))


def _check_random_states(states: dict[str, Json]) -> None:
    as_text(states.get("torch", ""), "the state of torch's generator")
    for name in ("python", "numpy"):
        as_list(states.get(name, []), "the state of another generator")
    for state in as_list(states.get("cuda", []), "states of generators"):
        as_text(state, "the state of a generator")


def _tensor(value: Json) -> TrialTensor:
    entry = as_mapping(value, "a tensor")
    count = 1
    for size in as_list(entry["shape"], "a shape"):
        count *= as_number(size, "a size")
        if not 0 <= count < _MOST_ELEMENTS:
            raise ValueError("a shape is too large for any machine, or negative")
    item = ITEM_BYTES.get(as_text(entry["dtype"], "a dtype"))
    record = as_text(entry["record"], "a record")
    return TrialTensor(record, None if item is None else item * count)
