"""The self-test record of a package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Literal, NamedTuple, TypeAlias

from modpack.core.codec import from_json, json_keys, record_to_json
from modpack.core.json_values import Json
from modpack.core.observations import NO_OBSERVATIONS, Observations
from modpack.core.tensors import ITEM_BYTES, MAX_DIMENSIONS
from modpack.core.text import counted

SELF_TEST_VERSION = 1
"""Version of the record. Raise it if a reader of the old version would misread the new record."""

AdditionKind: TypeAlias = Literal["intern", "extern", "file", "metadata"]
"""An interned module, an extern module, a data file, or a distribution's metadata."""


class Addition(NamedTuple):
    """A resource that the self-test found missing and that was added to the package.

    Attributes:
        kind: One of :data:`AdditionKind`.
        name: The module path, record, or distribution.
        by: The packaged module that requested it, or None if no module did.
    """

    kind: AdditionKind
    name: str
    by: str | None = None


class Difference(NamedTuple):
    """One difference between two outputs.

    Attributes:
        path: The path of the leaf, such as ``output[0].logits``.
        text: The expected and the actual value.
        is_structural: Whether the type, shape, dtype, or length differs, which randomness cannot
            explain.
    """

    path: str
    text: str
    is_structural: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class SelfTestCase(NamedTuple):
    """One saved object, run on one example.

    Attributes:
        resource: Package and resource of the object.
        number: Number of the example in the package, from 0. Its records are named after it.
        global_hooks: Whether process-wide hooks are restored for it.
        deterministic: Whether two runs of the live object gave the same output. If not, only
            types, shapes, and lengths were compared.
        unstable: Paths in the output at which even types, shapes, or lengths differed.
    """

    resource: tuple[str, str]
    number: int
    global_hooks: bool = False
    deterministic: bool = True
    unstable: tuple[str, ...] = ()

    def explains(self, difference: Difference) -> bool:
        """Return whether the live object's own randomness explains a difference."""
        # Randomness explains other values. It explains another shape only where two live runs
        # differed.
        is_stable = difference.is_structural and difference.path not in self.unstable
        return not (self.deterministic or is_stable)


def _why_no_shape(shape: tuple[int, ...]) -> str | None:
    return "it has too many dimensions" if len(shape) > MAX_DIMENSIONS else None


class OutputTensor(NamedTuple):
    """A tensor in the output of an example.

    Attributes:
        dtype: torch's name of its dtype.
        shape: Its shape.
        record: The record of its elements.
    """

    dtype: str
    shape: Annotated[tuple[int, ...], _why_no_shape]
    record: str

    @property
    def size_bytes(self) -> int | None:
        """The size of its elements. None for unknown dtypes."""
        item = ITEM_BYTES.get(self.dtype)
        return None if item is None else item * prod(self.shape)


@json_keys(optional=("tensor", "device"))
class OutputLeaf(NamedTuple):
    """A value in the output of an example.

    Attributes:
        path: Its position in the output.
        structure: Its type, and the form of what it contains.
        value: Its text, to compare values that are not tensors.
        tensor: Its elements, for a tensor.
        device: The device of a tensor.
    """

    path: str
    structure: str
    value: str | None
    tensor: OutputTensor | None = None
    device: str | None = None


class RecordedOutput(NamedTuple):
    """The output of an example.

    Attributes:
        leaves: Its values, in order.
    """

    leaves: tuple[OutputLeaf, ...]


@json_keys(optional=("torch", "cuda"))
class RandomStates(NamedTuple):
    """States of torch's random generators. Those of Python and NumPy are not checked.

    Attributes:
        torch: State of the generator for the CPU.
        cuda: States of the generators for GPUs.
    """

    torch: str = ""
    cuda: tuple[str, ...] = ()


class RunConditions(NamedTuple):
    """The conditions of an example's run, besides the model and the inputs.

    Attributes:
        grad: Whether gradients were enabled.
        inference: Whether the inference mode was enabled.
        deterministic: Whether torch was restricted to deterministic algorithms.
        deterministic_warn_only: Whether it only warned of others.
        mkldnn: Whether MKL-DNN was enabled.
        default_dtype: torch's default dtype.
        default_device: torch's default device.
        matmul_precision: Precision of matrix products of float32.
        threads: Number of threads.
        autocast: The dtype of autocast, by device.
        random: Random states at the start.
    """

    grad: bool
    inference: bool
    deterministic: bool
    deterministic_warn_only: bool
    mkldnn: bool
    default_dtype: str
    default_device: str
    matmul_precision: str
    threads: int
    autocast: Mapping[str, str]
    random: RandomStates


# Without the seconds, in which equal builds would differ.
# Optional, because older packages lack it.
@json_keys(omitted=("seconds",), optional=("why_none_waits",))
@dataclass(frozen=True)
class SelfTestRecord:
    """The outcome of a self-test.

    Attributes:
        passed: Whether the package loaded, and its objects and their outputs matched the live ones.
        namespace: The namespace that the package was loaded in.
        cases: The saved objects and examples that were run.
        rounds: The number of clean interpreters that were started.
        seconds: Total duration in seconds. 0 when read from a package, which does not record it.
        additions: Resources that were found missing and added.
        private_failure: Why the package cannot use the private namespace, if it cannot.
        failure: Why the self-test failed, if it did.
        hidden: Module paths that were hidden, each with its submodules.
        hidden_distributions: Distributions that were hidden.
        operators: Schemas of operators that had to be declared first.
        python: The Python version.
        torch: The torch version.
        objects: Package and resource of the objects that were loaded and compared.
        observations: What the deciding run saw.
        device: The device that was chosen for the examples. None for those of the saved tensors.
        why_none_waits: What a trial of waiting imports showed, if none can wait.
    """

    passed: bool
    namespace: str
    cases: tuple[SelfTestCase, ...]
    rounds: int
    seconds: float = 0.0
    additions: tuple[Addition, ...] = ()
    private_failure: str | None = None
    failure: str | None = None
    hidden: tuple[str, ...] = ()
    hidden_distributions: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    python: str | None = None
    torch: str | None = None
    objects: tuple[tuple[str, str], ...] = ()
    observations: Observations = NO_OBSERVATIONS
    device: str | None = None
    why_none_waits: str | None = None

    @property
    def deterministic(self) -> bool:
        """Whether all outputs were compared bit by bit."""
        return all(case.deterministic for case in self.cases)

    @property
    def runs(self) -> int:
        """The number of examples that ran successfully."""
        return len(self.cases) if self.passed else 0

    @property
    def outcome(self) -> str:
        """The verdict for display: ``passed``, ``failed``, or what was compared if not all was."""
        if not self.passed:
            return "failed"
        if not self.cases:
            return "passed, without examples"
        return "passed" if self.deterministic else "passed, structure only"

    @property
    def extent(self) -> str:
        """What was compared, for display."""
        if not self.cases:
            return "loaded and compared with the live object, without examples"
        if not self.deterministic:
            return "by structure (not deterministic)"
        return "bit by bit" if self.device is None else f"within tolerances, on {self.device}"

    def to_json(self) -> dict[str, Json]:
        """Return the record in the form that the archive format reference describes."""
        return {"version": SELF_TEST_VERSION, **record_to_json(self)}


def self_test_from_json(record: Mapping[str, Json]) -> SelfTestRecord:
    """Read a record that :meth:`SelfTestRecord.to_json` returned.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is invalid, or an example is listed twice.
    """
    read = from_json(SelfTestRecord, record, "the record")
    for number, times in Counter(case.number for case in read.cases).items():
        if times > 1:  # each case would read the same records again
            raise ValueError(f"example {number} is listed twice")
    return read


class WaitingImports(NamedTuple):
    """The imports of a package that may wait until a name is looked up.

    Attributes:
        modules: The names that may wait, for each module that the self-test loaded. Everything may
            wait in other modules.
        loaded: The packaged modules that are loaded if no import waits.
        companions: Pairs of a packaged module and another one that is imported with it, because
            the import of the second changes the first, or that is extern, and imported when the
            first reads it as an attribute. The first is empty for modules outside the package.
        version: The version of the record.
    """

    modules: Mapping[str, tuple[str, ...]]
    loaded: tuple[str, ...]
    companions: tuple[tuple[str, str], ...]
    version: int = 1

    def __str__(self) -> str:
        names = counted(sum(map(len, self.modules.values())), "name")
        return f"{names} in {counted(len(self.modules), 'module')}, until they are looked up"

    def why_loaded(self, module: str) -> str | None:
        """Return when a packaged module is imported; None if that is not recorded."""
        if module in self.modules:
            return "at load, because loading or the examples need it"
        with_others = sorted(by for by, companion in self.companions if companion == module)
        if with_others:
            return f"together with {with_others[0] or 'the first module'}, which it changes"
        return "once a name of it is looked up" if module in self.loaded else None
