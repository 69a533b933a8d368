"""The hooks of a saved object: their specs and their pickle are stored next to the object."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from modpack.archive.layout import hook_records
from modpack.capturing.collect import HookCollector
from modpack.capturing.observe import HookObserver
from modpack.capturing.report import (
    HookStatus,
    captured,
    left_out,
    native,
    process_wide,
    unvisited,
    unwrapped,
)
from modpack.core.hookspec import specs_to_json
from modpack.errors import ModpackWarning
from modpack.hooks.choice import HookChoice, check_names, selector
from modpack.writing.writer import ArchiveWriter


@dataclass(frozen=True)
class HookOptions:
    """Options for the hooks of a saved object.

    Attributes:
        choice: Which hooks to capture.
        process_wide: Whether to capture process-wide hooks as well.
        extras: Objects saved together with the object, such as its optimizer, by name.
    """

    choice: HookChoice = True
    process_wide: bool = False
    extras: dict[str, Any] = field(default_factory=dict)


class HookExporter:
    """Observes the pickling of one object and writes its hooks.

    Args:
        is_importable: Returns whether a function can be imported.
        obj: The object.
        options: How to treat its hooks.

    Attributes:
        extras: Objects saved together with the object, by name.
        observer: Observes the parts of the object.
    """

    def __init__(
        self,
        is_importable: Callable[[FunctionType], bool],
        obj: object,
        options: HookOptions | None,
    ) -> None:
        self._options = options or HookOptions()
        self._reports_process_wide = options is not None and not options.process_wide
        self._collector = HookCollector(
            is_importable,
            selector(self._options.choice),
            references_stay=self._options.choice is True,
        )
        if self._options.process_wide:
            self._collector.note_global_hooks()
        self.extras = self._options.extras
        self.observer = HookObserver(obj, self.extras, self._collector)

    def write(self, writer: ArchiveWriter, record: str, appended: bytes) -> Iterator[HookStatus]:
        """Write specs and pickle, and yield the status of each hook."""
        specs = tuple(self.observer.specs)
        # Only now are all hooks known: a submodule is found when it is pickled.
        check_names(self._options.choice, (*specs, *self._collector.left_out))
        if appended:
            specs_record, pickle_record = hook_records(record)
            content = json.dumps(specs_to_json(specs), sort_keys=True, indent=1)
            writer.write(specs_record, content.encode(), compress=True)
            writer.write(pickle_record, appended)
        yield from map(unwrapped, self.observer.unwrapped)
        yield from map(captured, specs)
        yield from self.observer.warn_unsaved()
        for spec in self._collector.find_unvisited_hooks(
            self.observer.root, lambda: self.observer.names
        ):
            status = unvisited(spec)  # the submodule was never pickled
            warnings.warn(f"hook {status.name!r}: {status.text}", ModpackWarning, stacklevel=2)
            yield status
        yield from map(left_out, self._collector.left_out)
        yield from self._native()
        if self._reports_process_wide:
            yield from process_wide()

    def _native(self) -> Iterator[HookStatus]:
        counted: Counter[tuple[object, str]] = Counter()
        for target, kind, hook in self._collector.native:
            path, _ = self.observer.names.of(target)
            yield native(self.observer.names.hook_name(path, kind, counted[path, kind]), hook)
            counted[path, kind] += 1
