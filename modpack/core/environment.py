"""The export environment of a package, and its comparison with the loading environment.

An environment is Python, the platform, and all distributions that the package depends on.

Loading a package imports this module, so it must import quickly: regular expressions are compiled
on first use.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from modpack.core.codec import ModulePath, from_json, json_keys, to_json
from modpack.core.json_values import Json, as_optional_text
from modpack.core.names import normalized, parents

if TYPE_CHECKING:
    from modpack.core.graph import DependencyGraph
    from modpack.core.plan import Plan

STABLE_ABI: Final = "abi3"
"""The ABI tag of Python's limited API (PEP 384), which all later Python 3 versions support."""


class NativeTag(NamedTuple):
    """The platform that native extensions were built for.

    Attributes:
        platform: ``sys.platform``.
        machine: Processor architecture (``x86_64``).
        abi: Python ABI as in extension file names (``cpython-311-x86_64-linux-gnu``).
        libc: Name of the C library on platforms with several (``glibc``), otherwise ``""``.
    """

    platform: str
    machine: str
    abi: str
    libc: str = ""

    @staticmethod
    def current() -> NativeTag:
        """Return the tag of this interpreter."""
        import platform
        import sysconfig

        # SOABI is not defined on every platform.
        abi = sysconfig.get_config_var("SOABI") or sysconfig.get_config_var("EXT_SUFFIX") or ""
        return NativeTag(sys.platform, platform.machine(), str(abi), platform.libc_ver()[0])

    @staticmethod
    def for_files(files: Iterable[str]) -> NativeTag:
        """Return the tag of native extensions that this interpreter can load.

        Args:
            files: Their file names. With the stable ABI, they need no particular Python version.
        """
        current = NativeTag.current()
        # A single file with another tag ties the package to this version of Python.
        is_stable = all(f".{STABLE_ABI}." in name for name in files)
        return current._replace(abi=STABLE_ABI) if is_stable else current

    def runs_on(self, other: NativeTag) -> bool:
        """Return whether native extensions with this tag load in an interpreter with ``other``.

        >>> tag = NativeTag("linux", "x86_64", "abi3", "glibc")
        >>> tag.runs_on(NativeTag("linux", "x86_64", "cpython-313-x86_64-linux-gnu", "glibc"))
        True
        """
        return self in (other, other._replace(abi=STABLE_ABI))

    def __str__(self) -> str:
        return " ".join(filter(None, self))


_URL: Final = (
    r"(?:https?|git\+https?|git\+ssh|hg\+https?|svn\+https?)://"
    r"(?:\w+@)?[A-Za-z0-9][\w.-]*(?::\d+)?(?:/[\w./@:%~+=?#-]*)?"
)
"""URLs without passwords, with host names that cannot be mistaken for an option."""


def _is_word(text: str, others: str) -> bool:
    """Return whether a text starts with a letter or digit, and has only these and some others.

    Without a regular expression, which each process would compile for its first load.
    """
    if not text.isascii() or not text[:1].isalnum():
        return False
    return all(each.isalnum() or each in others for each in text)


def public_version(version: str) -> str:
    """Return a version without its local label (PEP 440), which indexes do not contain.

    >>> public_version("2.13.0+cpu")
    '2.13.0'
    """
    return version.partition("+")[0]


class RecordedDistribution(NamedTuple):
    """A distribution that was installed in the export environment.

    Attributes:
        name: Name as installed.
        version: Version.
        editable: Whether it was an editable install, which pip cannot reproduce.
        license: License from its metadata, as an SPDX expression if possible. None if its
            metadata declares no license.
        requires: Normalized names of its requirements, without extras.
        hashes: Digests of the file it was installed from, by algorithm. Empty if not recorded.
        url: URL that pip installed it from (PEP 610), with the commit for version control. None
            if it came from an index, or if its origin is unknown.
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
        """The name and version as a requirement: ``numpy==2.1.0``.

        The local label is omitted: indexes do not contain it, and pip accepts ``2.13.0+cpu`` for
        ``2.13.0``.
        """
        return f"{self.name}=={public_version(self.version)}"

    @property
    def requirement(self) -> str | None:
        """The requirement for pip (PEP 508), or None for an editable install.

        Packages are untrusted input, so the text never contains a blank line, a quote, or another
        character with a meaning in a shell or requirements file.
        """
        # PEP 508 allows these characters. A name that ends with one of them is invalid.
        if self.editable or not (_is_word(self.name, "._-") and self.name[-1].isalnum()):
            return None
        if self.url is not None and re.fullmatch(_URL, self.url):
            return f"{self.name} @ {self.url}"
        return self.pin if _is_word(self.version, ".!+_-") else None


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
    modpack: str | None = None
    torch_settings: Mapping[str, str] = MappingProxyType({})


# A derived class, because a NamedTuple has no `__dict__`, which cached_property needs.
class RecordedEnvironment(_Environment):
    """The export environment of a package. Unrecorded values are None or empty.

    Attributes:
        python: Python version.
        implementation: Python implementation (``CPython``).
        platform: Operating system, as in :data:`sys.platform`.
        machine: Processor architecture.
        torch: torch version.
        providers: Normalized names of the distributions that provided extern modules, by module
            path. The path is the top-level name, or longer in namespace packages, where
            distributions share the top-level name.
        distributions: Distributions by normalized name: those in ``providers``, torch, modpack,
            and all their installed requirements.
        native: Tag of the native extensions, or None if there are none.
        has_distribution_metadata: Whether the package contains the metadata of all its interned
            distributions.
        modpack: modpack version.
        torch_settings: Process-wide settings of torch that were not its defaults, by name, if the
            model may depend on them.
    """

    def provider_of(self, module: str) -> RecordedDistribution | None:
        """Return the distribution that provided an extern module, or None if not recorded.

        For a namespace package, return one of the distributions that provided modules in it.
        """
        for path in chain([module], parents(module)):
            if path in self.providers:
                return self.distributions.get(self.providers[path])
        # A namespace package has no provider itself. The first module below it follows in the list.
        start = bisect_left(self._provided, f"{module}.")
        submodule = next(iter(self._provided[start : start + 1]), "")
        if not submodule.startswith(f"{module}."):
            return None
        return self.distributions.get(self.providers[submodule])

    @cached_property
    def _provided(self) -> list[str]:
        """The provided module paths, sorted so that submodules follow their parent."""
        return sorted(self.providers)

    @property
    def torch_distribution(self) -> RecordedDistribution | None:
        """The distribution of torch, or None if torch was not imported."""
        return self._runtime_distribution("torch", self.torch)

    @property
    def modpack_distribution(self) -> RecordedDistribution | None:
        """The distribution of modpack, or None if not recorded."""
        return self._runtime_distribution("modpack", self.modpack)

    def _runtime_distribution(self, name: str, version: str | None) -> RecordedDistribution | None:
        if version is None:
            return None
        installed = self.distributions.get(name) or RecordedDistribution(name, version)
        return installed._replace(version=version)

    def group_by_distribution(
        self, externs: Iterable[str]
    ) -> dict[str, tuple[RecordedDistribution, tuple[str, ...]]]:
        """Return the distributions that provided extern modules, each with its modules.

        Returns:
            A dict in the order of its keys, the normalized names. Modules without a recorded
            distribution are omitted.
        """
        providers: dict[str, RecordedDistribution] = {}
        provided: dict[str, list[str]] = {}
        for module in sorted(externs):
            provider = self.provider_of(module)
            if provider is not None:
                name = normalized(provider.name)
                providers[name] = provider
                provided.setdefault(name, []).append(module)
        return {name: (providers[name], tuple(provided[name])) for name in sorted(providers)}

    @property
    def platform_label(self) -> str | None:
        """The operating system and processor for display: ``linux x86_64``."""
        return " ".join(part for part in (self.platform, self.machine) if part) or None


_TEXTS: Final = ("python", "implementation", "platform", "machine", "torch", "modpack")


def environment_to_json(environment: RecordedEnvironment) -> dict[str, Json]:
    """Return the environment record of a package."""
    record: dict[str, Json] = {key: getattr(environment, key) for key in _TEXTS}
    # Sorted, because packages are reproducible.
    record["providers"] = dict(sorted(environment.providers.items()))
    record["installed"] = to_json(dict(sorted(environment.distributions.items())))
    if environment.torch_settings:
        record["torch_settings"] = dict(environment.torch_settings)
    if environment.native is not None:
        record["native"] = to_json(environment.native)
    return record


def environment_from_json(record: Mapping[str, Json]) -> RecordedEnvironment:
    """Read the environment record of a package.

    Raises:
        KeyError: If a key is missing.
        TypeError: If a value has the wrong type.
        ValueError: If a value is invalid.
    """
    kinds = dict[str, RecordedDistribution]
    native = record.get("native")
    settings = from_json(dict[str, str], record.get("torch_settings", {}), "settings")
    for name, value in settings.items():
        # A load that warns of a setting shows a statement with this text, which users copy.
        if not re.fullmatch(r"[\w.,:=' ]*", value, re.ASCII):
            raise ValueError(f"{value!r:.80} is not a value of the setting {name!r:.80}")
    return RecordedEnvironment(
        providers=from_json(dict[ModulePath, str], record["providers"], "providers"),
        distributions=from_json(kinds, record["installed"], "installed"),
        native=None if native is None else from_json(NativeTag, native, "native"),
        # Only modpack writes this record, and always includes the metadata.
        has_distribution_metadata=True,
        torch_settings=settings,
        **{key: as_optional_text(record.get(key), key) for key in _TEXTS},
    )


class RowStatus:
    """The result of comparing one component of the environments."""

    SAME: Final = "same"
    """The installed version is the recorded one, or no version was recorded."""
    SIMILAR: Final = "similar"
    """The versions differ only in Python's micro version or a local label (``2.13.0+cpu``)."""
    UNKNOWN: Final = "unknown"
    """The component is installed, but its version is unknown."""
    DIFFERENT: Final = "different"
    """The version, Python implementation, or platform differs."""
    MISSING: Final = "missing"
    """The component is not installed."""


@json_keys({"is_optional": "optional"})
class EnvironmentRow(NamedTuple):
    """One component of the export environment, compared with the loading environment.

    Attributes:
        name: ``Python``, ``platform``, or a distribution. A module if its distribution is not
            recorded.
        recorded: Version in the export environment, if recorded.
        installed: Version in the loading environment, or None if missing or unknown.
        status: Result of the comparison: ``same``, ``similar``, ``unknown``, ``different``, or
            ``missing``, which are the constants of :class:`RowStatus`.
        modules: Extern modules that it provides.
        requirement: Requirement with which pip installs the recorded version, or None if pip
            cannot.
        is_optional: Whether loading succeeds although it is missing. True if it is only imported
            in functions, or where the code handles its absence.
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
        """Whether the difference is worth a warning."""
        return self.status in (RowStatus.DIFFERENT, RowStatus.MISSING)

    @property
    def installed_text(self) -> str:
        """The installed version for display."""
        if self.status == RowStatus.MISSING:
            return "missing, not needed to load" if self.is_optional else "missing"
        return self.installed or ("unknown" if self.recorded else "installed")


@json_keys(derived=("matches", "matches_exactly", "install_command"))
class EnvironmentComparison(NamedTuple):
    """The comparison of a package's export environment with the loading environment.

    Attributes:
        rows: Python, the platform, and torch first, then the others by name.
    """

    rows: tuple[EnvironmentRow, ...] = ()

    @property
    def differences(self) -> tuple[EnvironmentRow, ...]:
        """The rows that are worth a warning."""
        return tuple(row for row in self.rows if row.is_notable)

    @property
    def deviations(self) -> tuple[EnvironmentRow, ...]:
        """All rows that differ, which ``on_mismatch="error"`` rejects."""
        return tuple(row for row in self.rows if row.status != RowStatus.SAME)

    @property
    def matches(self) -> bool:
        """Whether loading raises no warning."""
        return not self.differences

    @property
    def matches_exactly(self) -> bool:
        """Whether loading with ``on_mismatch="error"`` accepts the environment."""
        return not self.deviations

    @property
    def missing(self) -> tuple[EnvironmentRow, ...]:
        """The rows of components that are not installed."""
        return tuple(row for row in self.rows if row.status == RowStatus.MISSING)

    @property
    def install_command(self) -> str | None:
        """The pip command that installs the recorded versions, or None if pip cannot."""
        return pip_install_command(self.differences)

    def classify_missing(self, plan: Plan) -> EnvironmentComparison:
        """Return the comparison with missing rows classified by the package's import graph.

        Modules that were missing in the export environment as well are dropped. Modules that
        loading does not import are optional.

        Args:
            plan: The plan that the package was exported with.
        """
        at_once = needed_at_once(plan.graph)
        rows = (
            _classify(row, plan, at_once) if row.status == RowStatus.MISSING else row
            for row in self.rows
        )
        return EnvironmentComparison(tuple(row for row in rows if row is not None))


def needed_at_once(graph: DependencyGraph) -> frozenset[str] | None:
    """Return the modules that loading imports, or None if the package has no import graph."""
    return graph.reachable_nodes(at_once=True) if graph.roots() else None


def is_optional(modules: Iterable[str], at_once: frozenset[str] | None) -> bool:
    """Return whether loading succeeds without some extern modules.

    This is the case if they are only imported in functions, or where the code handles their
    absence.
    """
    listed = list(modules)
    return bool(listed) and at_once is not None and at_once.isdisjoint(listed)


def pip_install_command(rows: Iterable[EnvironmentRow]) -> str | None:
    """Return the pip command that installs the recorded versions, or None if pip cannot."""
    wanted = dict.fromkeys(row.requirement for row in rows if row.requirement is not None)
    # No requirement contains a quote, even if a hostile package states it.
    return "pip install " + " ".join(f"'{each}'" for each in wanted) if wanted else None


def _classify(
    row: EnvironmentRow, plan: Plan, at_once: frozenset[str] | None
) -> EnvironmentRow | None:
    if row.recorded is None and not any(_was_installed(module, plan) for module in row.modules):
        return None
    return row._replace(is_optional=is_optional(row.modules, at_once))


def _was_installed(module: str, plan: Plan) -> bool:
    """Return whether an extern module was installed in the export environment."""
    decision = plan.decisions.get(module)
    return decision is None or decision.location is not None
