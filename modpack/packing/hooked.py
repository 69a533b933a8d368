"""The hooks of a saved object: their specs and their pickle go beside the object's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Protocol

from modpack.archive.writer import ArchiveWriter
from modpack.core.hookspec import hook_records, specs_to_json
from modpack.hooks.collect import HookCollector
from modpack.hooks.observer import HookObserver
from modpack.hooks.report import HookStatus, captured, left_out, native
from modpack.hooks.selection import HookChoice, check_names, selector

__all__ = ["HookOptions", "HookSaver"]


@dataclass(frozen=True)
class HookOptions:
    """What to do about the hooks of a saved object.

    Attributes:
        choice: which hooks to capture.
        process_wide: whether to capture the hooks of the whole process as well.
        extras: what is saved along with the object, by name, such as its optimizer.
    """

    choice: HookChoice = True
    process_wide: bool = False
    extras: dict[str, Any] = field(default_factory=dict)


class _Naming(Protocol):
    def is_importable(self, function: FunctionType) -> bool: ...


class HookSaver:
    """Watches one object being pickled, and writes what was found.

    Args:
        naming: tells which functions can be imported.
        obj: the object.
        options: what to do about its hooks.
    """

    def __init__(self, naming: _Naming, obj: object, options: HookOptions | None) -> None:
        self._options = options or HookOptions()
        wanted = selector(self._options.choice)
        self._collector = HookCollector(naming.is_importable, wanted)
        if self._options.process_wide:
            self._collector.process_wide()
        self.observer = HookObserver(obj, self._options.extras, self._collector)

    def write(self, writer: ArchiveWriter, record: str, appended: bytes) -> Iterator[HookStatus]:
        """Write specs and pickle, and tell what became of each hook."""
        specs = tuple(self.observer.specs)
        check_names(self._options.choice, (*specs, *self._collector.left_out))
        if appended:
            specs_record, pickle_record = hook_records(record)
            content = json.dumps(specs_to_json(specs), sort_keys=True, indent=1)
            writer.write(specs_record, content.encode(), compress=True)
            writer.write(pickle_record, appended)
        yield from map(captured, specs)
        yield from map(left_out, self._collector.left_out)
        for target, kind, hook in self._collector.native:
            path, _ = self.observer.names.of(target)
            yield native(self.observer.names.hook_name(path, kind, 0), hook)
