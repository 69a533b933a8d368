"""What packaged code does with the modules that were mocked, as values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["MockRisk", "MockTouch", "NameUse", "TouchKind", "UseKind", "risk_of"]


class UseKind(str, Enum):
    """Where, in its importer's code, a name of a mocked module is used."""

    BASE_CLASS = "base-class"
    """Something is derived from it."""
    DECORATOR = "decorator"
    """It decorates a function or a class."""
    CALL = "call"
    """It is called by code that runs when its importer is imported."""
    VALUE = "value"
    """Any other use when the importer is imported: a default value, an assignment, a condition."""
    ANNOTATION = "annotation"
    """In an annotation only: evaluated at import time or later, never called."""
    FUNCTION = "function"
    """In the body of a function: used when, and if, that is called."""
    CHECK = "check"
    """In the body of a function, where it is only asked about: ``isinstance``, ``is None``, the
    type in an ``except`` clause. Stand-ins answer, as what is not there: no."""

    @property
    def is_at_import(self) -> bool:
        """Whether it happens when the importer is imported."""
        return self not in (UseKind.FUNCTION, UseKind.CHECK)


@dataclass(frozen=True)
class NameUse:
    """One place where packaged code uses a name of a mocked module.

    Attributes:
        module: the mocked module.
        name: what is used, dotted, below that module (``"init"``); empty for the module itself.
            What comes of it is named by its way: ``"init(...).log"`` of what a call gave,
            ``"Callback (base of Progress)"`` for a class that is derived from it.
        importer: the interned module whose code uses it; or a saved object (``<model/net.pkl>``)
            that holds a function which travels by its source, and imports it.
        line: 1-based line of the use in the importer's source; 1 in a saved object.
        kind: how it is used.
        scope: the qualified name of the function or class around it; empty at module level.
        is_live: for uses in functions, whether anything in the package can call that function,
            judged by names: False only if nothing else mentions it.
        via: the interned modules through which the name came, if the importer has it from another
            interned module (``from .tools import log``); in the order from the mock to the use.
        is_called_later: for decorators and base classes, whether what is made with it can be called
            once its module is imported: it is a stand-in, too.
    """

    module: str
    name: str
    importer: str
    line: int
    kind: UseKind
    scope: str = ""
    is_live: bool = True
    via: tuple[str, ...] = ()
    is_called_later: bool = False

    @property
    def is_reachable(self) -> bool:
        """Whether something will raise NotImplementedError if the package's code gets there."""
        return self.is_called_later or (self.kind is UseKind.FUNCTION and self.is_live)


class TouchKind(str, Enum):
    """What a trial run did with a mocked module."""

    LOADED = "loaded"
    """It was imported."""
    NAMED = "named"
    """Names were taken from it, which costs nothing."""
    USED = "used"
    """Something of it was really used, and raised NotImplementedError."""


@dataclass(frozen=True)
class MockTouch:
    """What a trial run did with one mocked module, or with one name of it.

    Attributes:
        module: the mocked module.
        kind: what was done.
        name: what was used, as its importers call it (``wandb.log``); empty for LOADED.
        operation: what was done with it (``was called``); for USED.
        place: ``record:line`` of the packaged code that did it, if known; for USED.
    """

    module: str
    kind: TouchKind
    name: str = ""
    operation: str = ""
    place: str | None = None


class MockRisk(str, Enum):
    """What becomes of a package because a module is mocked, from the least to the worst."""

    UNUSED = "unused"
    """Nothing of it is used, or only in functions that nothing can call."""
    IMPORT_TIME = "import-time"
    """Used only in ways that stand-ins bear: while modules are imported (base classes,
    decorators, annotations, calls at module level), or asked about and no more."""
    REACHABLE = "reachable"
    """Used in a function that can be called, or it decorates one: it will raise
    NotImplementedError then."""


def risk_of(uses: Iterable[NameUse]) -> MockRisk:
    """The risk of a mocked module, judged by all uses of its names."""
    listed = list(uses)
    if any(use.is_reachable for use in listed):
        return MockRisk.REACHABLE
    is_borne = any(use.kind is not UseKind.FUNCTION for use in listed)
    return MockRisk.IMPORT_TIME if is_borne else MockRisk.UNUSED
