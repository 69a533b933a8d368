"""What a package records about its trial run, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from modpack.core.json_values import Json
from modpack.core.plan import MockTouch, TouchKind

TRIAL_VERSION = 1
"""Raise it when a reader of the old version would misunderstand what is written."""

ADDITION_KINDS: Final = ("intern", "extern", "file", "metadata")
"""What a trial can add: modules that are interned or extern, data files, metadata."""

_MOST_SECONDS = 1e12


@dataclass(frozen=True)
class Addition:
    """Something that the trial found missing, and that was added for it.

    Attributes:
        kind: one of :data:`ADDITION_KINDS`.
        name: the module path, the record, or the distribution.
        by: the packaged module that asked for it; None if none did.
    """

    kind: str
    name: str
    by: str | None = None


@dataclass(frozen=True)
class OutsideImport:
    """A distribution that was imported in the trial, and that nothing in the package names.

    Attributes:
        distribution: its name.
        version: its version.
        module: the first of its modules that was imported.
        by: the module that imported it, as far as that is known.
    """

    distribution: str
    version: str
    module: str
    by: str | None = None


@dataclass(frozen=True)
class UnfilledTable:
    """A table of a module that names a class where the package was made, and not in the trial.

    Attributes:
        module: the module.
        name: of the table in it.
        kind: the class.
    """

    module: str
    name: str
    kind: str

    def __str__(self) -> str:
        return (
            f"{self.module}.{self.name} names {self.kind} in this process, and does not after "
            "loading: a constructor may fill it, which loading does not call"
        )


@dataclass(frozen=True)
class TriedCase:
    """One saved object that was tried on one example.

    Attributes:
        resource: package and resource of the object.
        number: of the example: names its records.
        restore_global: whether process-wide hooks are restored for it.
        deterministic: whether the live object gave the same output twice. If not, only types,
            shapes and lengths were compared.
        unstable: paths in the output at which not even those were the same twice.
    """

    resource: tuple[str, str]
    number: int
    restore_global: bool = False
    deterministic: bool = True
    unstable: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseRecords:
    """The records of one example of one saved object.

    Attributes:
        number: of the example in the package, from 0.
    """

    number: int

    @property
    def inputs(self) -> str:
        """The pickle of the arguments."""
        return f".data/modpack/trial/{self.number}/inputs.pkl"

    @property
    def conditions(self) -> str:
        """The random states and modes of the recorded run."""
        return f".data/modpack/trial/{self.number}/conditions.json"

    @property
    def output(self) -> str:
        """The leaves of the recorded output."""
        return f".data/modpack/trial/{self.number}/output.json"

    def tensor(self, index: int) -> str:
        """The bytes of one tensor of the output."""
        return f".data/trial-{self.number}-{index}.storage"


@dataclass(frozen=True)
class TrialRecord:
    """A trial run and its outcome.

    Attributes:
        passed: whether the package loaded and computed what the live objects did.
        namespace: in which namespace.
        cases: what was run.
        rounds: how many clean interpreters it took.
        seconds: how long it took in all; 0 where it was read, for packages do not tell it.
        added: what it found missing.
        why_process: why the private namespace cannot serve the package, if it cannot.
        failure: why it did not pass, if it did not.
        hidden: module paths that were hidden in it, with all that is below them.
        hidden_distributions: distributions that were hidden in it.
        operators: schemas of operators that had to be declared first.
        python: the version of Python.
        torch: the version of torch.
        touches: what the package did with mocked modules.
        tells_touches: whether that was watched; trials of older versions did not watch.
        imported: distributions that extern modules imported, and that nothing in the package names.
        unfilled: tables that name a class of the model where the package was made only.
    """

    passed: bool
    namespace: str
    cases: tuple[TriedCase, ...]
    rounds: int
    seconds: float
    added: tuple[Addition, ...] = ()
    why_process: str | None = None
    failure: str | None = None
    hidden: tuple[str, ...] = ()
    hidden_distributions: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    python: str | None = None
    torch: str | None = None
    touches: tuple[MockTouch, ...] = ()
    tells_touches: bool = True
    imported: tuple[OutsideImport, ...] = ()
    unfilled: tuple[UnfilledTable, ...] = ()

    @property
    def deterministic(self) -> bool:
        """Whether outputs were compared bit by bit."""
        return all(case.deterministic for case in self.cases)

    @property
    def records(self) -> tuple[CaseRecords, ...]:
        """The records of each case."""
        return tuple(CaseRecords(case.number) for case in self.cases)

    @property
    def outcome(self) -> str:
        """Whether it passed, and how far that goes, in a word or two."""
        if not self.passed:
            return "failed"
        return "passed" if self.deterministic else "passed, structure only"

    def to_json(self) -> dict[str, Json]:
        """The record that a package holds; the archive format page documents it."""
        return {
            "version": TRIAL_VERSION,
            "passed": self.passed,
            "namespace": self.namespace,
            "cases": [_case(case) for case in self.cases],
            "rounds": self.rounds,
            "added": [{"kind": a.kind, "name": a.name, "by": a.by} for a in self.added],
            "why_process": self.why_process,
            "failure": self.failure,
            "hidden": list(self.hidden),
            "hidden_distributions": list(self.hidden_distributions),
            "operators": list(self.operators),
            "python": self.python,
            "torch": self.torch,
            "imported": [
                {
                    "distribution": o.distribution,
                    "version": o.version,
                    "module": o.module,
                    "by": o.by,
                }
                for o in self.imported
            ],
            "unfilled": [
                {"module": t.module, "name": t.name, "class": t.kind} for t in self.unfilled
            ],
            **({"touches": [touch_to_json(t) for t in self.touches]} if self.tells_touches else {}),
        }


def trial_from_json(record: Mapping[str, Json]) -> TrialRecord:
    """Read back what :meth:`TrialRecord.to_json` made.

    Raises:
        KeyError, TypeError, ValueError: it made something else.
    """
    cases = tuple(_read_case(cast(Mapping[str, Json], case)) for case in _list(record["cases"]))
    _refuse_twice(cases)
    return TrialRecord(
        bool(record["passed"]),
        _text(record["namespace"]),
        cases,
        _number(record["rounds"]),
        _seconds(record.get("seconds", 0)),
        tuple(_read_addition(cast(Mapping[str, Json], a)) for a in _list(record["added"])),
        _optional(record["why_process"]),
        _optional(record["failure"]),
        tuple(map(_text, _list(record["hidden"]))),
        tuple(map(_text, _list(record["hidden_distributions"]))),
        tuple(map(_text, _list(record["operators"]))),
        _optional(record["python"]),
        _optional(record["torch"]),
        tuple(map(touch_from_json, _list(record.get("touches", [])))),
        "touches" in record,
        tuple(map(_read_outside, _list(record.get("imported", [])))),
        tuple(map(_read_unfilled, _list(record.get("unfilled", [])))),
    )


def touch_to_json(touch: MockTouch) -> Json:
    """What was done with a mocked module, as it is stored and told."""
    return {
        "module": touch.module,
        "kind": touch.kind.value,
        "name": touch.name,
        "operation": touch.operation,
        "place": touch.place,
    }


def touch_from_json(record: Json) -> MockTouch:
    """Read back what :func:`touch_to_json` made.

    Raises:
        KeyError, TypeError, ValueError: it made something else.
    """
    if not isinstance(record, dict):
        raise TypeError(f"{record!r} is no object")
    return MockTouch(
        _text(record["module"]),
        TouchKind(_text(record["kind"])),
        _text(record["name"]),
        _text(record["operation"]),
        _optional(record["place"]),
    )


def _case(case: TriedCase) -> Json:
    return {
        "resource": list(case.resource),
        "number": case.number,
        "restore_global": case.restore_global,
        "deterministic": case.deterministic,
        "unstable": list(case.unstable),
    }


def _read_case(record: Mapping[str, Json]) -> TriedCase:
    package, resource = _list(record["resource"])
    return TriedCase(
        (_text(package), _text(resource)),
        _number(record["number"]),
        bool(record["restore_global"]),
        bool(record["deterministic"]),
        tuple(map(_text, _list(record["unstable"]))),
    )


def _refuse_twice(cases: Sequence[TriedCase]) -> None:
    """Refuse two cases of one number: it names their records, which would be read for each."""
    numbers: set[int] = set()
    for case in cases:
        if case.number in numbers:
            raise ValueError(f"example {case.number} is listed twice")
        numbers.add(case.number)


def _read_addition(record: Mapping[str, Json]) -> Addition:
    kind = _text(record["kind"])
    if kind not in ADDITION_KINDS:
        raise ValueError(f"{kind!r:.60} is no kind of what a trial adds")
    return Addition(kind, _text(record["name"]), _optional(record["by"]))


def _read_outside(record: Json) -> OutsideImport:
    if not isinstance(record, dict):
        raise TypeError(f"{record!r:.60} is no object")
    return OutsideImport(
        _text(record["distribution"]),
        _text(record["version"]),
        _text(record["module"]),
        _optional(record["by"]),
    )


def _read_unfilled(record: Json) -> UnfilledTable:
    if not isinstance(record, dict):
        raise TypeError(f"{record!r:.60} is no object")
    return UnfilledTable(_text(record["module"]), _text(record["name"]), _text(record["class"]))


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _optional(value: Json) -> str | None:
    return None if value is None else _text(value)


def _number(value: Json) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no number")
    return value


def _seconds(value: Json) -> float:
    """A duration; JSON as Python reads it has infinities, and whole numbers beyond any float."""
    if isinstance(value, (int, float)) and 0 <= value < _MOST_SECONDS:
        return float(value)
    raise TypeError(f"{value!r:.60} is no duration")
