"""Modules that the self-test hides, and the import path of its interpreters."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from modpack.core.names import RUNTIME_ROOTS, is_stdlib, normalized, root_of
from modpack.core.plan import Decision, Plan
from modpack.core.rules import Action
from modpack.discovery.distributions import DistributionIndex, InstalledDistribution, import_root
from modpack.exporting.presets import always_installed
from modpack.selftest.interpreters import installation_paths, script_folder
from modpack.selftest.process import HiddenModules


def find_hidden_modules(
    plan: Plan,
    installed: DistributionIndex,
    scripts: Sequence[str] = (),
    visible: Iterable[str] = (),
) -> HiddenModules:
    """Return the modules, distributions, and files to hide from the self-test.

    These are the interned ones: a self-contained package loads without the originals. If any
    module below a top-level name is extern, that library must be installed in the loading
    environment, so none of its modules is hidden. torch, modpack, and the distributions that they
    require are not hidden either.

    Args:
        plan: The plan.
        installed: The installed distributions.
        scripts: Files of scripts whose definitions are included.
        visible: Top-level names that extern modules need, too.
    """
    staying = {root_of(d.module) for d in _decisions_with(plan, Action.EXTERN)}.union(visible)
    always = always_installed(installed)
    interned = [d for d in _decisions_with(plan, Action.INTERN) if root_of(d.module) not in staying]
    providers = {d.module: installed.distribution_of(d.module, d.location) for d in interned}
    owners = {module: normalized(each.name) for module, each in providers.items() if each}
    hidden = [d for d in interned if owners.get(d.module) not in always]
    names = {owners[d.module] for d in hidden if d.module in owners}
    # A distribution with extern modules keeps its metadata, which they may read.
    names.difference_update(extern_distributions(plan, installed))
    roots = sorted({root_of(d.module) for d in hidden})
    # The folders or the file that contain a root and nothing else.
    files = list(scripts)
    for root in roots:
        decision = plan.decisions.get(root)
        location = decision.location if decision is not None else None
        if location is not None and location.is_package:
            files += location.search
        elif location is not None and location.file is not None:
            files.append(location.file)
    paths = {str(Path(file).absolute()) for file in files}
    return HiddenModules(tuple(roots), tuple(sorted(names)), tuple(sorted(paths)))


def build_sys_path(plan: Plan, hidden: HiddenModules) -> list[str]:
    """Return ``sys.path`` for the self-test: the current one without folders of hidden code.

    The working folder, the folder of the running script, and folders that contain hidden modules
    are removed, unless an extern module of the package is in them too.
    """
    # The interpreter imports modpack and torch, even if hidden code is in the same folder.
    needed = {str(Path(__file__).parents[2]), *installation_paths()}
    for decision in _decisions_with(plan, Action.EXTERN):
        location = decision.location
        if location is not None:
            place = Path(location.file or next(iter(location.search), ".")).absolute()
            needed.add(import_root(decision.module, place, location.file is None))
    unwanted = {str(Path.cwd()), *(str(Path(place).parent) for place in hidden.paths)}
    unwanted.add(script_folder() or "")
    entries = [str(Path(entry or Path.cwd()).absolute()) for entry in sys.path]
    return [entry for entry in entries if entry in needed or entry not in unwanted]


def _decisions_with(plan: Plan, action: Action) -> Iterator[Decision]:
    for decision in plan.decisions.values():
        root = root_of(decision.module)
        if decision.action is action and root not in RUNTIME_ROOTS:
            if action is Action.INTERN or not is_stdlib(root):
                yield decision


def extern_distributions(
    plan: Plan, installed: DistributionIndex
) -> dict[str, InstalledDistribution]:
    """Return the distributions of a plan's extern modules, by normalized name."""
    found = (
        installed.distribution_of(d.module, d.location)
        for d in _decisions_with(plan, Action.EXTERN)
    )
    return {normalized(owner.name): owner for owner in found if owner is not None}
