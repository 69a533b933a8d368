"""Observations: what a self-test saw while it loaded and ran a package.

A package contains only those that are the same on every host. They are the word of the package's
producer, so readers say that the package recorded them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from modpack.core.codec import json_keys
from modpack.core.text import counted


class MockEventKind(str, Enum):
    """The kind of access to a mocked module in a self-test."""

    LOADED = "loaded"
    """The module was imported."""
    NAMED = "named"
    """Names were taken from the module, which is harmless."""
    USED = "used"
    """The module was used, which raised NotImplementedError."""


class MockEvent(NamedTuple):
    """An access to a mocked module, or to one of its names, in a self-test.

    Attributes:
        module: The mocked module.
        kind: The kind of access.
        name: The name, as importers write it (``wandb.log``). Empty for ``LOADED``.
        operation: The operation (``was called``), for ``USED``.
        location: ``record:line`` of the packaged code, if known, for ``USED``.
    """

    module: str
    kind: MockEventKind
    name: str = ""
    operation: str = ""
    location: str | None = None

    def __str__(self) -> str:
        is_loaded = self.kind is MockEventKind.LOADED
        operation = self.operation or ("was imported" if is_loaded else "was looked up")
        location = f" at {self.location}" if self.location else ""
        return f"{self.name or self.module} {operation}{location}"


class MockRisk(str, Enum):
    """What runs showed about a mocked module, the lowest risk first."""

    UNTOUCHED = "untouched"
    """No run used the mock or took a name from it."""
    USED_AT_IMPORT = "used-at-import"
    """Code took names from the mock, at import time or in checks, where mocks work. Nothing raised
    an exception."""
    NOT_OBSERVED = "not-observed"
    """No successful run with example inputs was recorded."""
    CALLED = "called"
    """A run called the mock, or used it otherwise, which raised NotImplementedError."""

    def describe(self, runs: int) -> str:
        """Return the risk as text, with the number of runs that showed it."""
        is_counted = self in (MockRisk.UNTOUCHED, MockRisk.USED_AT_IMPORT)
        text = self.value.replace("-", " ")
        return f"{text} in {counted(runs, 'run')}" if is_counted else text


def observed_risk(events: Sequence[MockEvent], runs: int) -> MockRisk:
    """Return the risk of a mocked module.

    Args:
        events: The accesses to the module.
        runs: The number of successful runs with example inputs.

    >>> observed_risk([], 0).value, observed_risk([], 2).describe(2)
    ('not-observed', 'untouched in 2 runs')
    """
    kinds = {each.kind for each in events}
    # Bad news counts without a successful run. Good news needs one.
    if MockEventKind.USED in kinds:
        return MockRisk.CALLED
    if not runs:
        return MockRisk.NOT_OBSERVED
    return MockRisk.USED_AT_IMPORT if MockEventKind.NAMED in kinds else MockRisk.UNTOUCHED


class UndeclaredImport(NamedTuple):
    """A distribution that the self-test imported and that the package does not name.

    Attributes:
        distribution: Its name.
        version: Its version.
        module: The first of its modules that was imported.
        by: The module that imported it, if known.
    """

    distribution: str
    version: str
    module: str
    by: str | None = None


@json_keys({"kind": "class"})
class UnfilledTable(NamedTuple):
    """A module-level table that names a class in the export environment but not after loading.

    Attributes:
        module: The module.
        name: The table's name in the module.
        kind: The class.
    """

    module: str
    name: str
    kind: str

    def __str__(self) -> str:
        return (
            f"{self.module}.{self.name} names {self.kind} in this process, but not after "
            "loading, so code that looks the class up there will not find it, and may ignore an "
            "option or return None. A constructor may fill the table, and loading calls no "
            "constructors."
        )


class Observations(NamedTuple):
    """What a self-test saw.

    Attributes:
        modules: The packaged modules that loading imported.
        example_modules: The packaged modules that only the runs of the examples imported.
        files: Records of the packaged data files that Python code opened.
        distributions: Distributions that extern modules imported and that the package does not
            name.
        mock_events: The accesses to mocked modules.
        unfilled_tables: Tables that name a class of the model in the export environment only.
        warnings: Differences and failures that do not fail the self-test.
    """

    modules: tuple[str, ...] = ()
    example_modules: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    distributions: tuple[UndeclaredImport, ...] = ()
    mock_events: tuple[MockEvent, ...] = ()
    unfilled_tables: tuple[UnfilledTable, ...] = ()
    warnings: tuple[str, ...] = ()

    def importer_of(self, module: str) -> str:
        """Return what imported a packaged module: ``loading``, ``an example``, or ``nothing``."""
        if module in self.modules:
            return "loading"
        return "an example" if module in self.example_modules else "nothing"

    def __str__(self) -> str:
        parts = [f"loading imported {counted(len(self.modules), 'packaged module')}"]
        if self.example_modules:
            parts.append(f"the examples imported {len(self.example_modules)} more")
        if self.files:
            parts.append(f"code opened {counted(len(self.files), 'packaged file')}")
        return ", ".join(parts)


NO_OBSERVATIONS: Final = Observations()
