"""Whether this is where a package can be loaded: asked before any of its code runs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence

from modpack.archive import layout
from modpack.archive.base import Archive, RecordVerifier
from modpack.core.environment import (
    EnvironmentComparison,
    EnvironmentRow,
    RecordedEnvironment,
    repair_command,
)
from modpack.core.frames import frames_of_ours
from modpack.core.native import NativeTag
from modpack.errors import (
    EnvironmentMismatchError,
    EnvironmentMismatchWarning,
    PlatformMismatchError,
)
from modpack.report.recorded import read_plan
from modpack.report.wording import printable
from modpack.resolution.present import compare

__all__ = ["check_environment", "compare_environment", "missing_externs", "refuse_other_platforms"]

_told: set[str] = set()
"""The digests of packages whose environments this process has warned of."""
_lock = threading.Lock()


def compare_environment(
    archive: Archive,
    recorded: RecordedEnvironment,
    externs: Sequence[str],
    verify: RecordVerifier | None = None,
) -> EnvironmentComparison:
    """What a package was made with, beside what is here.

    The package's graph is read only if something is missing, to tell whether it matters.

    Args:
        archive: the package.
        recorded: where it was made.
        externs: its extern modules.
        verify: its manifest, if the records have not been checked yet.

    Raises:
        ArchiveError: its graph is damaged.
    """
    comparison = compare(recorded, externs)
    if comparison.missing and archive.has(layout.GRAPH):
        return comparison.judged_by(read_plan(archive, verify))
    return comparison


def check_environment(
    source: str, digest: str, comparison: EnvironmentComparison, strict: bool
) -> None:
    """Warn, or refuse, if a package was made with other versions than those that are here.

    Args:
        source: the package file.
        digest: the package's digest: one warning for each in a process.
        comparison: what it was made with, beside what is here.
        strict: whether to refuse any deviation. If not, what rarely matters is no difference.

    Raises:
        EnvironmentMismatchError: ``strict``, and something is not as recorded.
    """
    rows = comparison.deviations if strict else comparison.differences
    if not rows:
        return
    about = (source, tuple(map(_difference, rows)), repair_command(rows))
    if strict:
        raise EnvironmentMismatchError(*about)
    with _lock:
        is_told = digest in _told
        _told.add(digest)
    if not is_told:
        warnings.warn(EnvironmentMismatchWarning(*about), stacklevel=frames_of_ours())


def missing_externs(rows: Iterable[EnvironmentRow]) -> Mapping[str, str | None]:
    """The extern modules that are not here, the first of each row, with what to give to pip."""
    return {row.modules[0]: row.requirement for row in rows if row.modules}


def refuse_other_platforms(source: str, recorded: RecordedEnvironment) -> None:
    """Refuse a package with compiled modules that were built for something else.

    Raises:
        PlatformMismatchError: they cannot run here.
    """
    built_for = recorded.native
    if built_for is not None and not built_for.runs_on(NativeTag.here()):
        raise PlatformMismatchError(source, str(built_for), str(NativeTag.here()))


def _difference(row: EnvironmentRow) -> tuple[str, str, str]:
    return printable(row.name), printable(row.recorded or "extern"), printable(row.here)
