"""What a package records about its self-test, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from modpack.core.codec import from_json, json_keys, record_to_json
from modpack.core.json_values import Json
from modpack.core.plan import MockEvent

SELF_TEST_VERSION = 1
"""Raise it when a reader of the old version would misunderstand what is written."""

AdditionKind: TypeAlias = Literal["intern", "extern", "file", "metadata"]
"""What a self-test can add: modules that are interned or extern, data files, metadata."""


class Addition(NamedTuple):
    """Something that the self-test found missing, and that was added for it.

    Attributes:
        kind: one of :data:`AdditionKind`.
        name: the module path, the record, or the distribution.
        by: the packaged module that asked for it; None if none did.
    """

    kind: AdditionKind
    name: str
    by: str | None = None


class OutsideImport(NamedTuple):
    """A distribution that was imported in the self-test, and that nothing in the package names.

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


@json_keys({"kind": "class"})
class UnfilledTable(NamedTuple):
    """A table of a module that names a class where the package was made, and not in the self-test.

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


@json_keys({"global_hooks": "restore_global"})
class TriedCase(NamedTuple):
    """One saved object that was tried on one example.

    Attributes:
        resource: package and resource of the object.
        number: of the example: names its records.
        global_hooks: whether process-wide hooks are restored for it.
        deterministic: whether the live object gave the same output twice. If not, only types,
            shapes and lengths were compared.
        unstable: paths in the output at which not even those were the same twice.
    """

    resource: tuple[str, str]
    number: int
    global_hooks: bool = False
    deterministic: bool = True
    unstable: tuple[str, ...] = ()


class CaseRecords(NamedTuple):
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


@json_keys(optional=("seconds", "touches", "tells_touches", "imported", "unfilled"))
@dataclass(frozen=True)
class SelfTestRecord:
    """A self-test and its outcome.

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
        tells_touches: whether that was watched; self-tests of older versions did not watch.
        imported: distributions that extern modules imported, and that nothing in the package names.
        unfilled: tables that name a class of the model where the package was made only.
    """

    passed: bool
    namespace: str
    cases: tuple[TriedCase, ...]
    rounds: int
    seconds: float = 0.0
    added: tuple[Addition, ...] = ()
    why_process: str | None = None
    failure: str | None = None
    hidden: tuple[str, ...] = ()
    hidden_distributions: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    python: str | None = None
    torch: str | None = None
    touches: tuple[MockEvent, ...] = ()
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
        untold = {"seconds", "tells_touches"} | (set() if self.tells_touches else {"touches"})
        fields = {k: value for k, value in record_to_json(self).items() if k not in untold}
        return {"version": SELF_TEST_VERSION, **fields}


def self_test_from_json(record: Mapping[str, Json]) -> SelfTestRecord:
    """Read back what :meth:`SelfTestRecord.to_json` made.

    Raises:
        TypeError, ValueError: it made something else.
    """
    read = from_json(SelfTestRecord, record, "the record")
    for number, times in Counter(case.number for case in read.cases).items():
        if times > 1:  # it names the records of a case, which would be read for each
            raise ValueError(f"example {number} is listed twice")
    return replace(read, tells_touches="touches" in record)
