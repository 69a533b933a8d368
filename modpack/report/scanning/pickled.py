"""The pickles of a package: which records they are, and what is wrong with them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from modpack.core.names import root_of
from modpack.discovery.effects import import_effects
from modpack.discovery.pickles import (
    FlawKind,
    PickledSource,
    PickleFlaw,
    PickleReader,
    PickleScan,
)
from modpack.report.auditing.facts import Finding
from modpack.report.auditing.findings import finding
from modpack.report.scanning.judging import Judge

__all__ = ["Pickle", "judge_pickle", "looks_pickled"]

_CODES: Final = {
    FlawKind.MALFORMED: "pickle-malformed",
    FlawKind.UNRESOLVED: "pickle-unresolved",
    FlawKind.EXTENSION: "pickle-extension",
    FlawKind.TRAILING: "pickle-trailing",
    FlawKind.NESTED: "pickle-nested",
    FlawKind.BUFFER: "pickle-buffer",
    FlawKind.CALLS: "pickle-calls-unknown",
    FlawKind.CODE: "pickle-runs-code",
    FlawKind.CHANGES: "pickle-changes-global",
    FlawKind.REACHES: "pickle-reaches-inside",
}
_SHOWN: Final = 4
_STARTS: Final = tuple(bytes((0x80, protocol)) for protocol in range(6))
_OLD_STARTS: Final = (b"(", b"]", b"}", b")", b"c")


@dataclass(frozen=True)
class Pickle:
    """A record that an unpickler may load.

    Attributes:
        record: its name; for what lies in an archive in a record, ``record!name``.
        data: its content.
        continues: the reader of the record before, if one unpickler loads both.
        is_several: whether pickles may follow each other in it.
        is_script: whether torch's C++ code reads it, as a part of a ScriptModule.
    """

    record: str
    data: bytes
    continues: PickleReader | None = None
    is_several: bool = False
    is_script: bool = False


def looks_pickled(start: bytes) -> bool:
    """Whether a record that begins like this may be a pickle."""
    return start.startswith(_STARTS) or start.startswith(_OLD_STARTS)


def judge_pickle(pickle: Pickle, judge: Judge) -> tuple[PickleScan, list[Finding]]:
    """Read one pickle, and find what is wrong with it.

    Args:
        pickle: the record.
        judge: knows what it may name.
    """
    reader = pickle.continues or PickleReader()
    scan = reader.read(pickle.data, several=pickle.is_several)
    found = [
        *_names(pickle, scan, judge),
        *_flaws(pickle, scan.flaws),
        *_nested(pickle, scan, judge),
        *_sources(pickle, scan.sources),
    ]
    return scan, found


def _names(pickle: Pickle, scan: PickleScan, judge: Judge) -> Iterator[Finding]:
    external: dict[str, list[str]] = {}
    for named in scan.names:
        for verdict in judge.judge(named, pickle.is_script):
            if verdict.code == "pickle-extern-name":
                external.setdefault(root_of(named.module), []).append(str(named))
            else:
                place = _place(pickle, named.used_at)
                yield finding(verdict.code, str(named), f"{pickle.record} {verdict.text}", place)
    for root, names in external.items():
        text = f"{pickle.record} names {_listed(names)}, of an extern library"
        yield finding("pickle-extern-name", root, text, pickle.record)


def _flaws(pickle: Pickle, flaws: Sequence[PickleFlaw]) -> Iterator[Finding]:
    for flaw in flaws:
        if flaw.kind is not FlawKind.NESTED:
            text = f"{pickle.record}: {flaw.text}"
            yield finding(_CODES[flaw.kind], pickle.record, text, _place(pickle, flaw.position))


def _nested(pickle: Pickle, scan: PickleScan, judge: Judge) -> Iterator[Finding]:
    """Pickles in pickles, which code of the package may load in its own way."""
    for position, data in scan.nested:
        inner = PickleReader().read(data)
        verdicts = [verdict for named in inner.names for verdict in judge.judge(named)]
        is_bad = inner.flaws or any(v.code != "pickle-extern-name" for v in verdicts)
        names = [str(each) for each in inner.names]
        told = [verdict.text for verdict in verdicts] or [f"names {_listed(names)}"]
        flaws = "".join(f"; {flaw.text}" for flaw in inner.flaws[:_SHOWN])
        text = f"bytes in {pickle.record} are a pickle themselves, which {_listed(told)}{flaws}"
        code = "pickle-nested" if is_bad else "pickle-nested-known"
        yield finding(code, pickle.record, text, _place(pickle, position))


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _sources(pickle: Pickle, sources: Sequence[PickledSource]) -> Iterator[Finding]:
    """What functions that travel by their source do when they are called."""
    for source in sources:
        text = textwrap.dedent(source.text)
        is_definition = text.lstrip().startswith(("def ", "async def "))
        called = source.name.rpartition(".")[2]
        for effect in import_effects(f"{text}\n{called}()\n" if is_definition else text):
            line = source.line + effect.line - 1
            told = f"{source.name} calls {effect.call} (line {line} of its source)"
            yield finding(f"code-{effect.kind.value}", source.name, told, pickle.record)


def _place(pickle: Pickle, position: int) -> str:
    return f"{pickle.record}, byte {position}"
