"""The hooks of a saved object: their specs and their pickle go beside the object."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from modpack.archive.layout import hook_records
from modpack.archive.writer import ArchiveWriter
from modpack.core.hookspec import specs_to_json
from modpack.errors import ModpackWarning
from modpack.hooks.collect import HookCollector, HookIdMap
from modpack.hooks.describe import HookChoice, check_names, selector
from modpack.hooks.observe import HookObserver, find_collected
from modpack.hooks.report import (
    HookStatus,
    captured,
    left_out,
    missed,
    native,
    process_wide,
    unwrapped,
)


@dataclass(frozen=True)
class HookOptions:
    """How to treat the hooks of a saved object.

    Attributes:
        choice: which hooks to capture.
        process_wide: whether to capture the hooks of the whole process as well.
        extras: what is saved along with the object, by name, such as its optimizer.
        reset_hook_state: whose collected state to leave behind.
    """

    choice: HookChoice = True
    process_wide: bool = False
    extras: dict[str, Any] = field(default_factory=dict)
    reset_hook_state: HookChoice = False


class HookExporter:
    """Watches one object being pickled, and writes what was found.

    Args:
        is_importable: whether a function can be imported.
        obj: the object.
        options: what to do about its hooks.

    Attributes:
        extras: what is saved along with the object, by name.
        observer: sees the parts of the object.
    """

    def __init__(
        self,
        is_importable: Callable[[FunctionType], bool],
        obj: object,
        options: HookOptions | None,
    ) -> None:
        self._options = options or HookOptions()
        self._tells_process_wide = options is not None and not options.process_wide
        self._collector = HookCollector(
            is_importable,
            selector(self._options.choice),
            references_stay=self._options.choice is True,
            numbers=HookIdMap(),
        )
        if self._options.process_wide:
            self._collector.process_wide()
        self.extras = self._options.extras
        self._emptied = find_collected(
            obj,
            self.extras,
            self._options.reset_hook_state,
            is_importable,
            self._options.process_wide,
        )
        self.observer = HookObserver(obj, self.extras, self._collector, self._emptied)

    def write(self, writer: ArchiveWriter, record: str, appended: bytes) -> Iterator[HookStatus]:
        """Write specs and pickle, and tell what became of each hook."""
        specs = tuple(self.observer.specs)
        check_names(self._options.choice, (*specs, *self._collector.left_out))
        if appended:
            specs_record, pickle_record = hook_records(record)
            content = json.dumps(specs_to_json(specs), sort_keys=True, indent=1)
            writer.write(specs_record, content.encode(), compress=True)
            writer.write(pickle_record, appended)
        yield from map(unwrapped, self.observer.unwrapped)
        yield from (captured(s, self._emptied.by_hook.get(s.name, ())) for s in specs)
        yield from self.observer.lost()
        for spec in self._collector.missed(self.observer.root, lambda: self.observer.names):
            status = missed(spec)  # on a part that was never pickled
            warnings.warn(f"hook {status.name!r}: {status.why}", ModpackWarning, stacklevel=2)
            yield status
        yield from map(left_out, self._collector.left_out)
        yield from self._native()
        if self._tells_process_wide:
            yield from process_wide()

    def _native(self) -> Iterator[HookStatus]:
        counted: Counter[tuple[object, str]] = Counter()
        for target, kind, hook in self._collector.native:
            path, _ = self.observer.names.of(target)
            yield native(self.observer.names.hook_name(path, kind, counted[path, kind]), hook)
            counted[path, kind] += 1
