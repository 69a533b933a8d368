"""A loader's policy, enforced: on what a package says, and again on what happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

from modpack.archive.base import Archive
from modpack.archive.manifest import read_manifest
from modpack.core.arguments import require_type
from modpack.core.trust import TrustPolicy
from modpack.core.trusting import violations
from modpack.errors import ModpackError, SignatureError, TrustError
from modpack.hermetic.index import ModuleIndex

if TYPE_CHECKING:
    from modpack.report.auditing.facts import Finding
    from modpack.report.scanning.judging import Judge

__all__ = ["ObjectTrust", "require_policy", "require_signature", "require_trust"]


def require_policy(policy: object) -> None:
    """Check a public argument that is a policy, or None.

    Raises:
        TypeError: it is something else.
    """
    expected = "a TrustPolicy or None; TrustPolicy.from_toml reads one from a file"
    require_type(policy, (TrustPolicy, type(None)), "policy", expected)


def require_trust(archive: Archive, policy: TrustPolicy, path: object) -> None:
    """Refuse a package that asks for what a policy does not allow; nothing of it is executed.

    Args:
        archive: the package; all but its tensors is as its manifest says.
        policy: what the loader allows.
        path: its file or folder, which a signature may lie beside; anything else if it has none.

    Raises:
        TrustError: tells all that is not allowed.
        SignatureError: nothing is wrong but the signature.
        ArchiveError: a record is damaged.
    """
    from modpack.report.trusting import package_violations  # what most loads do without

    problems = [str(each) for each in package_violations(archive, policy)]
    problems += _in_pickles(archive, policy)
    try:
        require_signature(archive, policy, path)
    except SignatureError as failure:
        if not problems:
            raise
        raise TrustError(archive.source, (failure.reason, *problems)) from failure
    if problems:
        raise TrustError(archive.source, tuple(problems))


def require_signature(archive: Archive, policy: TrustPolicy, path: object) -> None:
    """Refuse a package that nobody of those signed who have to, if anybody has to.

    Raises:
        SignatureError: there is no signature, or none that holds.
        ModpackError: the extra ``sign`` is not installed.
    """
    if policy.signers:
        from modpack.signing.finding import check_signatures

        file = path if isinstance(path, (str, os.PathLike)) else None
        check_signatures(archive, policy.signers, file)


def _in_pickles(archive: Archive, policy: TrustPolicy) -> Iterable[str]:
    """What is wrong with the pickles, if the policy restricts them."""
    if policy.pickle_globals is None:
        return
    from modpack.report.scanning.scanning import read_package

    scan = read_package(archive, read_manifest(archive), policy, with_sources=False)
    yield from _refusals(scan.findings, policy)


def _refusals(findings: Iterable[Finding], policy: TrustPolicy) -> Iterator[str]:
    """What is to be told of findings for which a package is refused."""
    from modpack.report.auditing.facts import Severity
    from modpack.report.trusting import name_remedy

    for found in findings:
        if found.severity is Severity.ERROR:
            place = f" ({found.place})" if found.place and found.place not in found.text else ""
            yield f"{found.text}{place}. Remedy: {name_remedy(found, policy)}"


@dataclass(frozen=True)
class ObjectTrust:
    """What the objects of a package may name and have, by a policy.

    Attributes:
        archive: the package.
        policy: what the loader allows.
        index: the package's modules.
        local_name: gives the path by which packaged code knows one of its modules, for the full
            name; None for any other name.
    """

    archive: Archive
    policy: TrustPolicy
    index: ModuleIndex
    local_name: Callable[[str], str | None]

    @property
    def restricts_names(self) -> bool:
        """Whether pickles may not name everything."""
        return self.policy.pickle_globals is not None

    @property
    def restricts_hooks(self) -> bool:
        """Whether not all kinds of hooks are allowed."""
        return self.policy.hook_kinds is not None

    def require_scanned(self, record: str) -> None:
        """Refuse a pickle that a scan of the package would refuse, had the package listed it.

        Raises:
            TrustError: tells why.
        """
        from modpack.report.scanning.scanning import scan_unlisted

        found = scan_unlisted(self.archive, record, self.policy)
        problems = tuple(_refusals(found, self.policy))
        if problems:
            raise TrustError(self.archive.source, problems)

    def require(self, module: str, name: str) -> None:
        """Refuse a name that is neither known, nor the package's own, nor allowed."""
        if not self._is_allowed(module, name):
            raise self._refused(module, name)

    def require_found(self, module: str, name: str, steps: Sequence[object]) -> None:
        """Refuse a name that leads through a module, or out of the package, to what is not allowed.

        ``module.os.system`` is judged as ``os.system``. A name of the package itself leads from
        class to class to what its own code defines; one that was imported there is judged as what
        it is where it comes from.
        """
        parts = name.split(".")
        for place, step in enumerate(steps[1:], start=1):
            home = self._local(str(getattr(step, "__name__", "")))
            is_module = isinstance(step, ModuleType)
            if is_module and home != f"{module}.{'.'.join(parts[:place])}":
                rest = ".".join(parts[place:])
                self.require(home, rest)
                return self.require_found(home, rest, steps[place:])
        if not (name and self._is_own(module)):
            return
        from modpack.core.knownnames import special_attribute

        found = steps[-1]
        is_plain = all(isinstance(step, type) for step in steps[1:-1])
        if not is_plain or special_attribute(name) is not None:
            raise self._refused(module, name)
        origin = getattr(found, "__module__", None)
        if isinstance(origin, str) and not self._is_own(self._local(origin)):
            self.require(origin, str(getattr(found, "__qualname__", name)))

    def require_hooks(self, kinds: Iterable[tuple[str, str]]) -> None:
        """Refuse hooks of kinds that are not allowed.

        Args:
            kinds: the kind and the name of each hook.

        Raises:
            TrustError: names them.
        """
        found: dict[str, list[str]] = {}
        for kind, name in kinds:
            found.setdefault(kind, []).append(name)
        problems = violations(self.policy, hook_kinds=found)
        if problems:
            raise TrustError(self.archive.source, tuple(map(str, problems)))

    @cached_property
    def _judge(self) -> Judge:
        from modpack.report.scanning.judging import Judge

        return Judge(self.archive, self.policy)

    def _is_allowed(self, module: str, name: str) -> bool:
        if self._is_own(module):
            return True  # what it leads to is looked at when it is found
        from modpack.discovery.pickledvalues import PickledName

        return not any(self._judge.judge(PickledName(module, name, 0)))

    def _is_own(self, module: str) -> bool:
        entry = self.index.find(module)
        return entry is not None and entry.is_code

    def _local(self, module: str) -> str:
        local = self.local_name(module)
        return module if local is None else local

    def _refused(self, module: str, name: str) -> ModpackError:
        full = f"{module}.{name}" if name else module
        return TrustError(
            self.archive.source,
            (
                f"a pickle names {full!r}, which pickle_globals of the policy does not allow. "
                f"Remedy: add {full!r} to pickle_globals of the policy, if you trust the package "
                "with it",
            ),
        )
