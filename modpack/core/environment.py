"""Where a package was made, as values: Python, the platform, and every distribution it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["RecordedDistribution", "RecordedEnvironment"]


@dataclass(frozen=True)
class RecordedDistribution:
    """An installed distribution, as it was when the package was made.

    Attributes:
        name: its name as it was installed under.
        version: its version.
        editable: whether it was an editable install: pip cannot install that version again.
        licence: its licence, as its metadata says: an SPDX expression if there is one; None if
            it says nothing.
        requires: normalised names of the distributions that it requires, without extras.
        hashes: digests of what it was installed from, by algorithm; empty where not recorded.
    """

    name: str
    version: str
    editable: bool = False
    licence: str | None = None
    requires: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)

    @property
    def pin(self) -> str:
        """What to give to pip: ``numpy==2.1.0``."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True)
class RecordedEnvironment:
    """Where a package was made; what an older package does not record is None or empty.

    Attributes:
        python: the Python's version.
        implementation: which Python (``CPython``).
        platform: the operating system, as :data:`sys.platform` has it.
        machine: the processor's architecture.
        torch: the torch's version.
        providers: the normalised name of the distribution that provided an extern module, by the
            module path of which it provided everything: the first component, or a longer path
            where distributions share that (namespace packages).
        distributions: by normalised name: those of ``providers``, torch's, and all that they
            require, as far as installed.
    """

    python: str | None = None
    implementation: str | None = None
    platform: str | None = None
    machine: str | None = None
    torch: str | None = None
    providers: Mapping[str, str] = field(default_factory=dict)
    distributions: Mapping[str, RecordedDistribution] = field(default_factory=dict)

    def provider_of(self, module: str) -> RecordedDistribution | None:
        """The distribution that provided an extern module; None if that is not recorded."""
        path = module
        while path:
            if path in self.providers:
                return self.distributions.get(self.providers[path])
            path = path.rpartition(".")[0]
        return None
