"""Archives in records of a package: ScriptModules and exported programs, as torch writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from modpack.archive.base import Archive
from modpack.archive.bytesources import BufferBytes
from modpack.archive.limits import DEFAULT_LIMITS
from modpack.archive.ziparchive import ZipArchive
from modpack.errors import ArchiveError
from modpack.report.auditing.facts import Finding
from modpack.report.auditing.findings import finding
from modpack.report.scanning.judging import Judge
from modpack.report.scanning.pickled import Pickle, judge_pickle, looks_pickled
from modpack.report.scanning.programs import (
    expressions_wrong,
    is_program_pickle,
    pickled_names,
)

__all__ = ["is_archive", "judge_archive", "judge_script_code"]

_DEEPEST: Final = 3
_FILE_ACCESS: Final = re.compile(rb"\b(?:torch|ops\.aten)\.(save|from_file)\(")
"""Operators of TorchScript that write or map files."""


def is_archive(start: bytes) -> bool:
    """Whether a record that begins like this may be a zip archive."""
    return start.startswith(b"PK\x03\x04")


def judge_archive(record: str, content: bytes, judge: Judge, depth: int = 1) -> Iterator[Finding]:
    """Look at the pickles and the code in an archive that is a record.

    Args:
        record: its name.
        content: the archive.
        judge: knows what pickles may name.
        depth: how many archives it lies in.
    """
    if depth > _DEEPEST:
        text = f"{record} is an archive in more than {_DEEPEST} others"
        yield finding("nested-archive", record, text, record)
        return
    try:
        with ZipArchive(BufferBytes(content), DEFAULT_LIMITS) as archive:
            yield from _judge_records(archive, record, judge, depth)
    except ArchiveError as failure:
        yield finding("nested-archive", record, f"{record}: {failure.reason}", record)


def _judge_records(archive: Archive, record: str, judge: Judge, depth: int) -> Iterator[Finding]:
    for inner, told in expressions_wrong(archive):
        text = f"{record}!{inner} has the expression {told}, which torch would evaluate"
        yield finding("nested-archive", record, text, f"{record}!{inner}")
    pickled = pickled_names(archive)
    for name in archive.names():
        shown = f"{record}!{name}"
        if "aotinductor/" in name.lower():
            text = f"{shown} is compiled code, which torch would load"
            yield finding("nested-archive", record, text, shown)
        elif is_program_pickle(name, pickled):
            yield from _judge_unpickled(archive, name, shown, judge, depth)
        else:
            yield from _judge_record(archive, name, shown, judge, depth)


def _judge_unpickled(
    archive: Archive, name: str, shown: str, judge: Judge, depth: int
) -> Iterator[Finding]:
    """What torch unpickles, even if it does not begin like a pickle."""
    content = archive.read(name)
    if is_archive(content[:4]):
        yield from judge_archive(shown, content, judge, depth + 1)
    else:
        yield from judge_pickle(Pickle(shown, content), judge)[1]


def _judge_record(
    archive: Archive, name: str, shown: str, judge: Judge, depth: int
) -> Iterator[Finding]:
    if name.endswith((".debug_pkl", ".storage")) or _is_tensor(name):
        return
    content = archive.read(name)
    if is_archive(content[:4]):
        yield from judge_archive(shown, content, judge, depth + 1)
    elif name.startswith("code/") and name.endswith(".py"):
        yield from judge_script_code(shown, content)
    elif name.endswith(".pkl") or looks_pickled(content[:2]):
        is_script = archive.has("constants.pkl")
        scan, found = judge_pickle(Pickle(shown, content, is_script=is_script), judge)
        if name.endswith(".pkl") or scan.names:
            yield from found


def _is_tensor(name: str) -> bool:
    return name.startswith(("data/", "constants/")) and "." not in name.rpartition("/")[2]


def judge_script_code(record: str, content: bytes) -> Iterator[Finding]:
    """Operators in TorchScript code that write or map files.

    Args:
        record: its name.
        content: the code, in TorchScript's language.
    """
    for match in _FILE_ACCESS.finditer(content):
        line = content.count(b"\n", 0, match.start()) + 1
        call = f"torch.{match.group(1).decode()}"
        text = f"{record} calls {call}, which writes or maps files"
        yield finding("script-file-access", call, text, f"{record}:{line}")
