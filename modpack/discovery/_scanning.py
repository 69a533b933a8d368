"""Scanning a source: its tree, and what the findings of the walk through it mean."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

from modpack.core.imports import (
    AstrayImport,
    ImportKind,
    ImportStatement,
    ModuleScan,
    ScanFailure,
    UnreadableImport,
)
from modpack.discovery._bindings import binds_unseen
from modpack.discovery._blocks import resolve_relative
from modpack.discovery._collect import Binding, collect
from modpack.discovery._constants import StaticStrings
from modpack.discovery._defined import defined_by
from modpack.discovery._dynamic import read_call
from modpack.discovery._exports import literal_exports
from modpack.discovery._listings import find_listings
from modpack.discovery._parse import ParsedSource, parse_source
from modpack.discovery._reads import find_reads
from modpack.discovery._standing import Conditions, Standing

__all__ = ["scanned"]

_LONGEST_CALL = 80  # characters


def scanned(source: str | bytes, module: str, is_package: bool) -> ModuleScan:
    """What :func:`modpack.discovery.source.scan_source` says."""
    parsed = parse_source(source)
    if isinstance(parsed, ScanFailure):
        return ModuleScan(failure=parsed)
    return _Scan(parsed, module, is_package).result()


_Found = tuple[int, int, ImportStatement | UnreadableImport | AstrayImport]  # line, column, what


class _Scan:
    """Turns the findings of the walk into values."""

    def __init__(self, parsed: ParsedSource, module: str, is_package: bool) -> None:
        self._parsed = parsed
        self._module = module
        self._text = parsed.text
        self._package = module if is_package else module.rpartition(".")[0]
        self._findings = collect(parsed, module, self._package)
        self._conditions = Conditions(module, self._findings.origins)
        values = _values_by_name(self._findings.bindings)
        self._strings = StaticStrings(module, self._package, values)

    def result(self) -> ModuleScan:
        found = sorted((*self._statements(), *self._calls()), key=lambda item: item[:2])
        results = [result for _, _, result in found]
        return ModuleScan(
            imports=tuple(item for item in results if isinstance(item, ImportStatement)),
            unreadable=tuple(item for item in results if isinstance(item, UnreadableImport)),
            astray=tuple(item for item in results if isinstance(item, AstrayImport)),
            bound=self._bound(),
            binds_unseen=binds_unseen(self._text),
            exported=self._exported(),
            reads=find_reads(self._parsed, self._module, self._package),
            listings=find_listings(self._parsed, self._module, self._package),
            defined=defined_by(self._parsed),
        )

    def _statements(self) -> Iterator[_Found]:
        for statement, block in self._findings.imports:
            standing = self._conditions.standing(block)
            position = (statement.lineno, statement.col_offset)
            for item in self._modules_of(statement, standing):
                yield *position, item

    def _modules_of(
        self, statement: ast.Import | ast.ImportFrom, standing: Standing
    ) -> Iterator[ImportStatement | AstrayImport]:
        kind = _kind(standing)
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield ImportStatement(
                    alias.name, (), kind, statement.lineno, standing.optional, standing.asked
                )
            return
        module = resolve_relative(self._package, statement.level, statement.module or "")
        if module is not None:
            names = tuple(alias.name for alias in statement.names)
            yield ImportStatement(
                module, names, kind, statement.lineno, standing.optional, standing.asked
            )
        elif not (standing.never or standing.guarded or standing.optional):
            yield AstrayImport(_excerpt(self._text, statement), statement.lineno)

    def _calls(self) -> Iterator[_Found]:
        for call, block in self._findings.calls:
            reading = read_call(call, block, self._strings, self._package)
            if reading.readable and not reading.modules:
                continue
            standing = self._conditions.standing(block)
            kind = _kind_of_call(standing)
            position = (call.lineno, call.col_offset)
            for module in reading.modules:
                found = ImportStatement(
                    module, reading.names, kind, call.lineno, standing.optional, standing.asked
                )
                yield *position, found
            if not reading.readable and not standing.never:
                yield *position, self._unreadable(call, standing)

    def _unreadable(self, node: ast.stmt | ast.expr, standing: Standing) -> UnreadableImport:
        return UnreadableImport(_excerpt(self._text, node), node.lineno, standing.guarded)

    def _bound(self) -> frozenset[str]:
        bound: set[str] = set()
        blocks = {binding.block for binding in self._findings.bindings}
        never = {block for block in blocks if self._conditions.standing(block).never}
        for name, block, _, is_deleted in self._findings.bindings:
            if is_deleted:
                bound.discard(name)
            elif block not in never:
                bound.add(name)
        return frozenset(bound)

    def _exported(self) -> tuple[str, ...] | None:
        if self._findings.exports_change_out_of_sight:
            return None
        return literal_exports(
            (statement, block.parent is None)
            for statement, block in self._findings.exports
            if not self._conditions.standing(block).never
        )


def _values_by_name(bindings: Iterable[Binding]) -> dict[str, list[ast.expr | None]]:
    values: dict[str, list[ast.expr | None]] = defaultdict(list)
    for binding in bindings:
        values[binding.name].append(binding.value)
    return values


def _kind(standing: Standing) -> ImportKind:
    if standing.never:
        return ImportKind.TYPE_CHECKING
    if standing.guarded:
        return ImportKind.GUARDED
    return ImportKind.FUNCTION if standing.in_function else ImportKind.REQUIRED


def _kind_of_call(standing: Standing) -> ImportKind:
    """Where a call stands matters only if it may fail or never runs."""
    kind = _kind(standing)
    return kind if kind.may_be_absent else ImportKind.DYNAMIC


def _excerpt(text: str, node: ast.stmt | ast.expr) -> str:
    """A node as written, in one line and cut to a readable length."""
    last = node.end_lineno or node.lineno
    lines = [line.encode() for line in text.split("\n")[node.lineno - 1 : last]]
    lines[-1] = lines[-1][: node.end_col_offset]  # columns count bytes
    lines[0] = lines[0][node.col_offset :]
    excerpt = " ".join(b" ".join(lines).decode().split())
    return excerpt if len(excerpt) <= _LONGEST_CALL else excerpt[: _LONGEST_CALL - 3] + "..."
