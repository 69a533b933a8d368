"""The environment a package was made in, and how that differs from another.

The environment is Python, the platform, and every distribution that the package needs.

Loading a package imports this module: what it defines is cheap to define, and its regular
expressions are compiled when they are used.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from modpack.core.codec import ModulePath, from_json, json_keys, to_json
from modpack.core.json_values import Json, as_optional_text
from modpack.core.names import normalized_distribution, parents, root_of

if TYPE_CHECKING:
    from modpack.core.graph import DependencyGraph
    from modpack.core.plan import Plan

STABLE_ABI: Final = "abi3"
"""Stands for Python's limited API (PEP 384), which every later Python 3 has."""


class NativeTag(NamedTuple):
    """What compiled modules were built for.

    Attributes:
        platform: ``sys.platform``.
        machine: the processor (``x86_64``).
        abi: Python's ABI, as in the names of extension modules (``cpython-311-x86_64-linux-gnu``).
        libc: the C library's name where there are several (``glibc``), else ``""``.
    """

    platform: str
    machine: str
    abi: str
    libc: str = ""

    @staticmethod
    def here() -> NativeTag:
        """The tag of this interpreter."""
        import platform
        import sysconfig

        abi = sysconfig.get_config_var("SOABI") or sysconfig.get_config_var("EXT_SUFFIX") or ""
        return NativeTag(sys.platform, platform.machine(), str(abi), platform.libc_ver()[0])

    @staticmethod
    def of(files: Iterable[str]) -> NativeTag:
        """The tag of extension modules that this interpreter can load.

        Args:
            files: their names; those with the stable ABI need no particular Python.
        """
        here = NativeTag.current()
        is_stable = all(f".{STABLE_ABI}." in name for name in files)
        return here._replace(abi=STABLE_ABI) if is_stable else here

    def runs_on(self, other: NativeTag) -> bool:
        """Whether what has this tag can be loaded where ``other`` is the tag.

        >>> tag = NativeTag("linux", "x86_64", "abi3", "glibc")
        >>> tag.runs_on(NativeTag("linux", "x86_64", "cpython-313-x86_64-linux-gnu", "glibc"))
        True
        """
        return self in (other, other._replace(abi=STABLE_ABI))

    def __str__(self) -> str:
        return " ".join(filter(None, self))


_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION: Final = r"[A-Za-z0-9][A-Za-z0-9.!+_-]*"
_URL: Final = (
    r"(?:https?|git\+https?|git\+ssh|hg\+https?|svn\+https?)://"
    r"(?:\w+@)?[A-Za-z0-9][\w.-]*(?::\d+)?(?:/[\w./@:%~+=?#-]*)?"
)
"""Addresses without passwords, of hosts that no program could take for an option."""


def public_version(version: str) -> str:
    """A version without the label of a local build (PEP 440), which no index has.

    >>> public_version("2.13.0+cpu")
    '2.13.0'
    """
    return version.partition("+")[0]


class RecordedDistribution(NamedTuple):
    """An installed distribution, as it was when the package was made.

    Attributes:
        name: its name as it was installed under.
        version: its version.
        editable: whether it was an editable install: pip cannot install that version again.
        license: its license, as its metadata says: an SPDX expression if there is one; None if
            it says nothing.
        requires: normalized names of the distributions that it requires, without extras.
        hashes: digests of what it was installed from, by algorithm; empty where not recorded.
        url: what pip was given to install it, if that was an address in a network (PEP 610), with
            the commit of a version control system; None if it came from an index, or is not known.
    """

    name: str
    version: str
    editable: bool = False
    license: str | None = None
    requires: tuple[str, ...] = ()
    hashes: Mapping[str, str] = MappingProxyType({})
    url: str | None = None

    @property
    def pin(self) -> str:
        """Its name and version as a requirement: ``numpy==2.1.0``.

        A local build's label is left out: an index does not have it, and pip takes
        ``2.13.0+cpu`` for ``2.13.0``.
        """
        return f"{self.name}=={public_version(self.version)}"

    @property
    def requirement(self) -> str | None:
        """What to give to pip (PEP 508); None for an editable install, which no pip can repeat.

        It never holds a blank line, a quote or another sign that a shell or a requirements file
        would understand: a package may record anything.
        """
        if self.editable or not re.fullmatch(_NAME, self.name):
            return None
        if self.url is not None and re.fullmatch(_URL, self.url):
            return f"{self.name} @ {self.url}"
        return self.pin if re.fullmatch(_VERSION, self.version) else None


class _Environment(NamedTuple):
    python: str | None = None
    implementation: str | None = None
    platform: str | None = None
    machine: str | None = None
    torch: str | None = None
    providers: Mapping[str, str] = MappingProxyType({})
    distributions: Mapping[str, RecordedDistribution] = MappingProxyType({})
    native: NativeTag | None = None
    has_distribution_metadata: bool = False
    has_requirements: bool = False
    modpack: str | None = None


class RecordedEnvironment(_Environment):
    """Where a package was made; what an older package does not record is None or empty.

    Attributes:
        python: the Python's version.
        implementation: which Python (``CPython``).
        platform: the operating system, as :data:`sys.platform` has it.
        machine: the processor's architecture.
        torch: the torch's version.
        providers: the normalized name of the distribution that provided an extern module, by the
            module path of which it provided everything: the first component, or a longer path
            where distributions share that (namespace packages).
        distributions: by normalized name: those of ``providers``, torch's, modpack's, and all
            that they require, as far as installed.
        native: what its compiled modules were built for; None if it holds none.
        has_distribution_metadata: whether the package has the metadata of all distributions that it
            holds.
        has_requirements: whether ``distributions`` has what others require: older packages record
            nothing of that.
        modpack: the version of the modpack that made it.
    """

    def provider_of(self, module: str) -> RecordedDistribution | None:
        """The distribution that provided an extern module; None if that is not recorded.

        Of a namespace package it is one that provided something in it.
        """
        for path in chain([module], parents(module)):
            if path in self.providers:
                return self.distributions.get(self.providers[path])
        at = bisect_left(self._provided, f"{module}.")
        below = next(iter(self._provided[at : at + 1]), "")
        is_below = below.startswith(f"{module}.")
        return self.distributions.get(self.providers[below]) if is_below else None

    @cached_property
    def _provided(self) -> list[str]:
        """What is provided, sorted, so that what lies below a module follows it."""
        return sorted(self.providers)

    @property
    def torch_distribution(self) -> RecordedDistribution | None:
        """The distribution of the torch that was loaded; None if none was."""
        return self._of_runtime("torch", self.torch)

    @property
    def modpack_distribution(self) -> RecordedDistribution | None:
        """The distribution of the modpack that made the package; None if that is not recorded."""
        return self._of_runtime("modpack", self.modpack)

    def _of_runtime(self, name: str, version: str | None) -> RecordedDistribution | None:
        if version is None:
            return None
        installed = self.distributions.get(name) or RecordedDistribution(name, version)
        return installed._replace(version=version)

    def group_by_distribution(
        self, externs: Iterable[str]
    ) -> dict[str, tuple[RecordedDistribution, tuple[str, ...]]]:
        """The distributions that provided extern modules, each with its modules.

        Returns:
            By normalized name, sorted. Modules of which no distribution is recorded are left out.
        """
        providers: dict[str, RecordedDistribution] = {}
        provided: dict[str, list[str]] = {}
        for module in sorted(externs):
            provider = self.provider_of(module)
            if provider is not None:
                name = normalized_distribution(provider.name)
                providers[name] = provider
                provided.setdefault(name, []).append(module)
        return {name: (providers[name], tuple(provided[name])) for name in sorted(providers)}

    @property
    def place(self) -> str | None:
        """Operating system and processor, as people read them: ``linux x86_64``."""
        return " ".join(part for part in (self.platform, self.machine) if part) or None


_TEXTS: Final = ("python", "implementation", "platform", "machine", "torch", "modpack")


@json_keys({"name": "distribution"}, optional=("editable",))
class _Extern(NamedTuple):
    """What older readers want to know of the distribution that provides a root."""

    name: str
    version: str
    editable: bool = False


def environment_to_json(environment: RecordedEnvironment) -> dict[str, Json]:
    """What a package records about where it was made.

    ``externs`` says again, for older readers, what ``providers`` and ``installed`` say: one
    distribution for each first component.
    """
    record: dict[str, Json] = {key: getattr(environment, key) for key in _TEXTS}
    record["externs"] = to_json(dict(_externs(environment)))
    record["providers"] = dict(sorted(environment.providers.items()))
    record["installed"] = to_json(dict(sorted(environment.distributions.items())))
    if environment.native is not None:
        record["native"] = to_json(environment.native)
    return record


def _externs(environment: RecordedEnvironment) -> Iterator[tuple[str, _Extern]]:
    for path, name in sorted(environment.providers.items(), reverse=True):
        found = environment.distributions[name]
        yield root_of(path), _Extern(found.name, found.version, found.editable)


def environment_from_json(record: Mapping[str, Json]) -> RecordedEnvironment:
    """Read back what :func:`environment_to_json` made, or an older modpack.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    externs = from_json(dict[ModulePath, _Extern], record["externs"], "externs")
    older = {root: RecordedDistribution(*found) for root, found in externs.items()}
    providers = {root: normalized_distribution(d.name) for root, d in older.items()}
    distributions = {normalized_distribution(d.name): d for d in older.values()}
    if "installed" in record:
        kinds = dict[str, RecordedDistribution]
        distributions = from_json(kinds, _respelled(record["installed"]), "installed")
        providers = from_json(dict[ModulePath, str], record["providers"], "providers")
    native = record.get("native")
    return RecordedEnvironment(
        providers=providers,
        distributions=distributions,
        native=None if native is None else from_json(NativeTag, native, "native"),
        has_distribution_metadata="distributions" in record,
        has_requirements="installed" in record,
        **{key: as_optional_text(record.get(key), key) for key in _TEXTS},
    )


def _respelled(rows: Json) -> Json:
    """Return rows of distributions with a ``license``, which early packages spell "licence"."""
    if not isinstance(rows, dict):
        return rows
    old = {name: row for name, row in rows.items() if isinstance(row, dict) and "licence" in row}
    return {**rows, **{name: {**row, "license": row["licence"]} for name, row in old.items()}}


class RowStatus:
    """What comparing one thing came to."""

    SAME: Final = "same"
    """It is as recorded, or there where nothing more is recorded."""
    SIMILAR: Final = "similar"
    """Only what rarely matters differs: the last number of Python's version, the label of a local
    build (``2.13.0+cpu``)."""
    UNKNOWN: Final = "unknown"
    """It is there, and nothing tells in which version."""
    DIFFERENT: Final = "different"
    """Another version, another Python, another platform."""
    MISSING: Final = "missing"
    """It is not installed here."""


@json_keys({"is_optional": "optional"})
class EnvironmentRow(NamedTuple):
    """One thing that was recorded, and what is here.

    Attributes:
        name: ``Python``, ``platform``, or a distribution; a module, where its distribution is not
            recorded.
        recorded: its version where the package was made, if recorded.
        installed: its version here; None if it is missing or unknown.
        status: Result of the comparison: ``same``, ``similar``, ``unknown``, ``different`` or
            ``missing``, which are the constants of :class:`RowStatus`.
        modules: the extern modules that it provides.
        requirement: what to give to pip to have it as recorded; None if pip cannot do that.
        is_optional: for what is missing: whether loading can do without it, because it is
            imported in functions only, or where the code copes with its absence.
    """

    name: str
    recorded: str | None
    installed: str | None
    status: str
    modules: tuple[str, ...] = ()
    requirement: str | None = None
    is_optional: bool = False

    @property
    def is_notable(self) -> bool:
        """Whether it is worth a warning."""
        return self.status in (RowStatus.DIFFERENT, RowStatus.MISSING)

    @property
    def here(self) -> str:
        """What is here, for people."""
        if self.status == RowStatus.MISSING:
            return "missing, not needed at once" if self.is_optional else "missing"
        return self.installed or ("unknown" if self.recorded else "there")


class EnvironmentComparison(NamedTuple):
    """What a package was made with, beside what is here.

    Attributes:
        rows: Python, the platform and torch first, then the others by name.
    """

    rows: tuple[EnvironmentRow, ...] = ()

    @property
    def differences(self) -> tuple[EnvironmentRow, ...]:
        """The rows that are worth a warning."""
        return tuple(row for row in self.rows if row.is_notable)

    @property
    def deviations(self) -> tuple[EnvironmentRow, ...]:
        """All rows that are not as recorded: what ``on_mismatch="error"`` rejects."""
        return tuple(row for row in self.rows if row.status != RowStatus.SAME)

    @property
    def missing(self) -> tuple[EnvironmentRow, ...]:
        """What is not installed here."""
        return tuple(row for row in self.rows if row.status == RowStatus.MISSING)

    @property
    def repair(self) -> str | None:
        """The pip command that brings what differs here as it was; None if pip cannot help."""
        return pip_install_command(self.differences)

    def classify_missing(self, plan: Plan) -> EnvironmentComparison:
        """The same with what the package's graph tells of missing modules.

        What was not there either when the package was made is no difference; and what nothing
        imports at once is optional.

        Args:
            plan: the plan that the package was written by.
        """
        at_once = needed_at_once(plan.graph)
        judged = (
            _judged(row, plan, at_once) if row.status == RowStatus.MISSING else row
            for row in self.rows
        )
        return EnvironmentComparison(tuple(row for row in judged if row is not None))


def needed_at_once(graph: DependencyGraph) -> frozenset[str] | None:
    """The modules that loading imports; None if nothing is known of imports."""
    return graph.reachable_nodes(at_once=True) if graph.roots() else None


def is_optional(modules: Iterable[str], at_once: frozenset[str] | None) -> bool:
    """Whether loading can do without some extern modules.

    They are imported in functions only, or where the code copes with their absence.
    """
    listed = list(modules)
    return bool(listed) and at_once is not None and at_once.isdisjoint(listed)


def pip_install_command(rows: Iterable[EnvironmentRow]) -> str | None:
    """The pip command that installs what some rows record; None if pip can do nothing."""
    wanted = dict.fromkeys(row.requirement for row in rows if row.requirement is not None)
    return "pip install " + " ".join(f"'{each}'" for each in wanted) if wanted else None


def _judged(
    row: EnvironmentRow, plan: Plan, at_once: frozenset[str] | None
) -> EnvironmentRow | None:
    if row.recorded is None and not any(_was_there(module, plan) for module in row.modules):
        return None
    return row._replace(is_optional=is_optional(row.modules, at_once))


def _was_there(module: str, plan: Plan) -> bool:
    """Whether an extern module was installed when the package was made."""
    decision = plan.decisions.get(module)
    return decision is None or decision.location is not None
