"""What the demo found out, as values; nothing here prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from modpack.core.graph import Edge
from modpack.core.hookspec import HookSpec
from modpack.core.plan import Decision, Plan
from modpack.core.rules import Action
from modpack.core.scan import ImportKind


@dataclass(frozen=True)
class Trained:
    """The training.

    Attributes:
        epochs: how often it went through the training images.
        images: how many training images there were.
        seconds: how long it took.
        report: the model's own drawing of it.
    """

    epochs: int
    images: int
    seconds: float
    report: str


@dataclass(frozen=True)
class Observation:
    """What a model does with the test images.

    Attributes:
        images: how many there were.
        accuracy: the share that was read right, from 0 to 1.
        logits: the sha256 of all logits, bit by bit, in hexadecimal.
        normalise_calls: how often the pre-hook that scales the pixels fired.
        feature_map_calls: how often the hook that collects feature maps fired.
        feature_maps: the sha256 of what it collected.
        refusal: what the hook that guards the shape says to a wrong one; empty if nothing.
        predictions: the digits read in the first images.
        gradients: the sha256 of all gradients after one backward pass.
        largest_gradient: the largest of their absolute values.
    """

    images: int
    accuracy: float
    logits: str
    normalise_calls: int
    feature_map_calls: int
    feature_maps: str
    refusal: str
    predictions: tuple[int, ...]
    gradients: str
    largest_gradient: float

    @property
    def hooks(self) -> str:
        """What the hooks did, in one line."""
        refused = "1 wrong shape refused" if self.refusal else "a wrong shape let through"
        return f"normalise {self.normalise_calls}, feature maps {self.feature_map_calls}, {refused}"


@dataclass(frozen=True)
class ModuleFact:
    """One module's fate.

    Attributes:
        module: its path.
        action: what happened to it.
        rule: why.
        place: who asked for it, as ``file:line`` or the name of a resource.
    """

    module: str
    action: Action
    rule: str
    place: str


@dataclass(frozen=True)
class HookFact:
    """Hooks of the model that call the same.

    Attributes:
        kind: what kind of hook it is.
        targets: where it hangs.
        called: the name of what it calls.
        source: the text that travels, if it cannot be imported.
    """

    kind: str
    targets: tuple[str, ...]
    called: str
    source: str | None


@dataclass(frozen=True)
class Packaged:
    """The package.

    Attributes:
        file: where it is.
        size: in bytes.
        seconds: how long it took to make.
        modules: every module's fate.
        left_behind: the project's files that are not in it, relative to the project.
        remarks: the plan's warnings.
        hook_calls: what the match hooks heard, in order: the action and the module.
        hooks: the model's own hooks that are in it.
    """

    file: Path
    size: int
    seconds: float
    modules: tuple[ModuleFact, ...]
    left_behind: tuple[str, ...]
    remarks: tuple[str, ...]
    hook_calls: tuple[tuple[Action, str], ...]
    hooks: tuple[HookFact, ...]


@dataclass(frozen=True)
class Reloaded:
    """What the clean interpreter reported.

    Attributes:
        folder: where it ran.
        unknown: the names that could not be imported there, of those that were tried.
        load_seconds: how long the package took to load.
        seconds: how long the interpreter ran.
        module: the name under which the model's code lives there.
        mocked: what using a mocked class says there; empty if it did not fail.
        observed: what the reloaded model does with the test images.
    """

    folder: str
    unknown: tuple[str, ...]
    load_seconds: float
    seconds: float
    module: str
    mocked: str
    observed: Observation


@dataclass(frozen=True)
class Check:
    """One promise, whether it was kept, and the evidence."""

    promise: str
    kept: bool
    evidence: str


def module_facts(plan: Plan, project: Path) -> tuple[ModuleFact, ...]:
    """Every module's fate, in the order interned, externed, mocked, then by reason and name.

    Args:
        plan: what the exporter decided.
        project: the folder that the files' names are shown relative to.
    """
    order = list(Action)
    facts = (
        ModuleFact(module, decision.action, decision.why, _asked_for(plan, module, project))
        for module, decision in plan.decisions.items()
    )
    return tuple(sorted(facts, key=lambda f: (order.index(f.action), f.rule, f.module)))


def hook_facts(specs: Iterable[HookSpec]) -> tuple[HookFact, ...]:
    """The model's hooks, those of a kind that call the same put together."""
    together: dict[tuple[str, str, str | None], list[str]] = {}
    for spec in specs:
        key = (spec.kind, spec.callable.name, spec.callable.source)
        together.setdefault(key, []).extend(spec.target)
    return tuple(
        HookFact(kind, tuple(targets), called, source)
        for (kind, called, source), targets in together.items()
    )


def files_left_behind(plan: Plan, project: Path) -> tuple[str, ...]:
    """The sources of a project that a plan does not take along.

    Args:
        plan: what the exporter decided.
        project: the folder that they lie in; the names are relative to it.
    """
    locations = (plan.decisions[module].location for module in plan.modules(Action.INTERN))
    taken = {Path(place.file) for place in locations if place is not None and place.file}
    files = sorted(file for file in project.rglob("*.py") if file not in taken)
    return tuple(file.relative_to(project).as_posix() for file in files)


def _asked_for(plan: Plan, module: str, project: Path) -> str:
    edges = sorted(plan.graph.edges_to(module), key=_weakness)
    if not edges:
        return ""
    edge = edges[0]
    importer = plan.decisions.get(edge.importer)
    if importer is None:
        return edge.importer.strip("<>")
    file = _shown_file(importer, project)
    return file if edge.line is None else f"{file}:{edge.line}"


def _weakness(edge: Edge) -> tuple[bool, bool]:
    return edge.line is None, edge.kind is not ImportKind.REQUIRED


def _shown_file(importer: Decision, project: Path) -> str:
    if importer.location is None or importer.location.file is None:
        return importer.module
    file = Path(importer.location.file)
    return file.relative_to(project).as_posix() if file.is_relative_to(project) else str(file)
