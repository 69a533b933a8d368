"""A summary of outputs for people and for JSON."""

from __future__ import annotations

from typing import Final

import torch

from modpack.core.call_signature import format_tensor
from modpack.core.text import dtype_name
from modpack.errors import DataError
from modpack.predicting.rows import Outputs
from modpack.report.json_output import OutputFacts

_SHOWN_ROWS: Final = 3
_SHOWN_VALUES: Final = 6


class OutputSummary:
    """Collects names, types, dimensions, and first values of outputs."""

    def __init__(self) -> None:
        self.rows = 0
        self._facts: dict[str, OutputFacts] = {}
        self._first: dict[str, list[object]] = {}
        self._whole: dict[str, object] = {}

    def add(self, outputs: Outputs) -> None:
        """Add the outputs of the next rows.

        Raises:
            DataError: If the names differ from those of earlier rows, or an output does not belong
                to rows and there are several batches.
        """
        if self.rows and (outputs.whole or self._whole):
            name = next(iter(outputs.whole or self._whole))
            raise DataError(
                f"output {name!r}",
                "the output does not have one value per row, so batches cannot be joined",
                hint="Run all rows in one batch: pass a larger --batch-size.",
            )
        if self.rows and list(outputs.rows) != list(self._facts):
            names = ", ".join(map(repr, outputs.rows))
            raise DataError("outputs", f"the outputs of later rows have other names: {names}")
        self._whole.update(outputs.whole)
        for name, value in outputs.rows.items():
            missing = _SHOWN_ROWS - self.rows
            if missing > 0:
                self._first.setdefault(name, []).extend(value[:missing])
            self._facts[name] = _joined_facts(self._facts.get(name), _facts_of(name, value))
        self.rows += outputs.row_count

    def facts(self, is_single: bool) -> tuple[OutputFacts, ...]:
        """Return all outputs."""
        rows = tuple(self._facts.values())
        if is_single:
            rows = tuple(
                each._replace(shape=each.shape[1:] if each.shape is not None else None)
                for each in rows
            )
        whole = (_facts_of(n, v, is_whole=True) for n, v in self._whole.items())
        return (*rows, *whole)

    def text(self, is_single: bool) -> str:
        """Return a table of the outputs with their first values."""
        lines = []
        for each in self.facts(is_single):
            lines.append(f"{each.name}: {format_tensor(each.type, each.shape)}")
            values = self._first.get(each.name, [self._whole.get(each.name)])
            lines += [f"  {_shorten(value)}" for value in values]
            if each.name in self._first and self.rows > len(values):
                lines.append("  ...")
        return "".join(f"{line}\n" for line in lines)


def _facts_of(name: str, value: object, is_whole: bool = False) -> OutputFacts:
    if isinstance(value, torch.Tensor):
        return OutputFacts(name, dtype_name(value.dtype), tuple(value.shape))
    sample = value if is_whole or not isinstance(value, list) else next(iter(value), None)
    return OutputFacts(name, "None" if sample is None else type(sample).__name__, None)


def _joined_facts(old: OutputFacts | None, new: OutputFacts) -> OutputFacts:
    if old is None:
        return new
    if old.shape is None or new.shape is None or old.shape[1:] != new.shape[1:]:
        return old._replace(shape=None)
    return old._replace(shape=(old.shape[0] + new.shape[0], *old.shape[1:]))


def _shorten(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    items = value.flatten()[:_SHOWN_VALUES].tolist()
    shown = [f"{each:.5g}" if isinstance(each, float) else str(each) for each in items]
    more = ", ..." if value.numel() > len(items) else ""
    return f"[{', '.join(shown)}{more}]" if value.dim() else shown[0]
