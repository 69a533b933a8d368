"""The exporter: gather, plan, write.

:class:`PackageExporter` has torch.package's names. It collects what the user saves, lets the
planner decide every module that this leads to, and carries out the plan when it is closed.
Its methods are in three parts: :mod:`~modpack.exporter.rules`, :mod:`~modpack.exporter.saving`
and :mod:`~modpack.exporter.answers`; how it begins and ends is here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from modpack.core.allowances import as_allowances
from modpack.core.arguments import require_type
from modpack.core.frames import frames_of_ours
from modpack.core.globs import GlobPattern
from modpack.core.plan import NoteKind, Plan
from modpack.errors import ModpackWarning, TrialError
from modpack.exporter.answers import ExporterAnswers
from modpack.exporter.rules import ExporterRules
from modpack.exporter.saving import ExporterSaving
from modpack.packing.arguments import as_importer, require_target, require_trial
from modpack.packing.leakguard import LeakGuard
from modpack.resolution.importers import Importer, sys_importer

if TYPE_CHECKING:
    from modpack.trial.reference import Case

__all__ = ["PackageExporter"]

_TRIED_OUT = (
    NoteKind.DYNAMIC_IMPORT,
    NoteKind.NESTED_PICKLE,
    NoteKind.REGISTERED_OUTSIDE,
)
"""Hazards that a trial looks into."""


class PackageExporter(ExporterRules, ExporterSaving, ExporterAnswers):
    """Writes a package: code, objects with their tensors, and files, in one archive.

    Every module that saved code or objects lead to is matched against the rules given with
    :meth:`intern`, :meth:`extern`, :meth:`mock` and :meth:`deny`: the first that matches
    decides. The standard library and torch are extern without a rule. Deciding reads source
    texts and executes nothing. Nothing appears under the target's name before everything has
    succeeded; if anything fails, the target stays exactly as it was.

    Use it as a context manager; leaving it writes the package, unless by an exception.

    Args:
        f: where to write: a path, or a binary file object open for writing. None plans only:
            nothing is ever written.
        importer: where objects and modules come from: an importer, or several in order
            (``[old_package, sys_importer]`` to save again what was loaded from a package).
        debug: whether a :class:`PackagingError` shows how each module is reached.
        trial: whether a package with example inputs is tried before it is put in its place: in
            an interpreter that cannot see what the package interns, it must load and compute
            what the live model did. ``"warn"`` writes a package that fails as well, with a
            warning; False runs nothing.
        allow_secrets: where something may be that looks like a secret: patterns of module paths,
            or, with a ``/`` in them, of records; with ``#`` and a fingerprint behind it, as the
            :class:`PackagingError` shows it, only that text.

    Raises:
        TypeError, ValueError: an argument is none of these.
        TargetError: the target cannot be written.

    >>> import io
    >>> buffer = io.BytesIO()
    >>> with PackageExporter(buffer) as exporter:
    ...     exporter.save_source_string("greet", "def hello(): return 'hello'")
    ...     exporter.save_text("greet_data", "who.txt", "world")
    >>> len(buffer.getvalue()) > 0
    True
    """

    def __init__(
        self,
        f: str | os.PathLike[str] | BinaryIO | None,
        importer: Importer | Sequence[Importer] = sys_importer,
        debug: bool = False,
        *,
        trial: bool | str = True,
        allow_secrets: GlobPattern = (),
    ) -> None:
        require_target(f)
        require_trial(trial)
        require_type(debug, bool, "debug", "a bool")
        guard = LeakGuard(as_allowances(allow_secrets))
        super().__init__(f, as_importer(importer), debug, trial, guard)

    def close(self) -> Plan:
        """Carry out the plan and put the package in its place.

        Returns:
            The plan that was carried out.

        Raises:
            PackagingError: there are problems; all are told at once. Nothing is written.
            EmptyMatchError: the only problem is a rule with ``allow_empty=False``.
            TargetError: the target cannot be written; it is as it was.
            TrialError: the package was tried and failed; the target is as it was.
        """
        self._check_open()
        self._closed = True
        try:
            self._bench.begin()
            plan = self._bench.plan()
            # A trial that passes shows that what is imported by computed names is there.
            tried_out = _TRIED_OUT if self._cases and not self._plans_only else ()
            _warn(note for note in plan.warnings() if note.kind not in tried_out)
            if self._plans_only:
                return plan
            if self._cases:
                try:
                    plan = self._tried(plan, self._cases)
                except TrialError:
                    _warn(note for note in plan.warnings() if note.kind in tried_out)
                    raise
            else:
                inherited = self._inherited_namespace()
                namespace = self._bench.namespace(plan) if inherited == "private" else inherited
                self._bench.write(plan, namespace)
            self._writer.commit()
            return plan
        finally:
            self._writer.discard()

    def _inherited_namespace(self) -> str:
        """That of the packages which are saved again: what they need, this one needs."""
        named = (getattr(i, "recommended_namespace", None) for i in self._environments.importers)
        return "process" if "process" in named else "private"

    def _tried(self, plan: Plan, cases: Sequence[Case]) -> Plan:
        """Write the package as its trial shows that it must be."""
        from modpack.trial.rounds import Trial
        from modpack.trial.trying import settle_trial

        scripts = self._objects.script_files
        source, planner, ownership = self._writer.source, self._planner, self._ownership
        trial = Trial(source, plan, cases, self._bench, planner, ownership, scripts)
        tried = settle_trial(trial, self._writer, write_anyway=self._trial == "warn")
        new = (note for note in tried.plan.warnings() if note not in plan.notes)
        _warn(note for note in new if note.kind not in _TRIED_OUT)
        _warn(tried.warnings)
        return tried.plan

    def __enter__(self) -> PackageExporter:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            if not self._closed:
                self.close()
            return
        self._closed = True
        self._writer.discard()


def _warn(messages: Iterable[object]) -> None:
    """Tell the user of something, where their code called modpack."""
    for message in messages:
        warnings.warn(str(message), ModpackWarning, stacklevel=frames_of_ours())
