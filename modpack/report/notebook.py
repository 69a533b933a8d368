"""Facts about a package for notebooks."""

from __future__ import annotations

from collections.abc import Iterator

from modpack.core.actions import Action
from modpack.core.notebook import html_details, html_heading, html_list, html_table
from modpack.core.plan import notes_to_show
from modpack.report.facts import HookFacts, ModuleFacts, PackageFacts
from modpack.report.wording import counted, human_size

__all__ = ["package_html"]


def package_html(facts: PackageFacts) -> str:
    """A package: where it comes from, what it warns of, its modules, hooks and resources."""
    return "".join(
        [
            html_heading(facts.file, human_size(facts.size_bytes)),
            html_table([], list(_head(facts))),
            html_list(str(note) for note in notes_to_show(facts.notes) if note.kind.is_warning),
            *(_modules(facts, action) for action in Action),
            _hooks(facts),
            _resources(facts),
        ]
    )


def _head(facts: PackageFacts) -> Iterator[tuple[str, str]]:
    origin = [
        f"Python {facts.python}" if facts.python else None,
        f"torch {facts.torch}" if facts.torch else None,
        facts.platform,
    ]
    tensors = f"{human_size(facts.storages.size_bytes)} in "
    yield "format", facts.format
    yield "made with", ", ".join(filter(None, origin)) or "not recorded"
    yield "loads", "/".join(facts.entry) if facts.entry else "nothing by itself: name a resource"
    yield "tensors", tensors + counted(facts.storages.count, "storage")
    yield "digest", facts.digest


def _modules(facts: PackageFacts, action: Action) -> str:
    chosen = [module for module in facts.modules if module.action is action]
    if not chosen:
        return ""
    table = html_table(["module", "from", "rule"], [_module(module) for module in chosen])
    return html_details(f"{action.past}: {len(chosen)}", table)


def _module(facts: ModuleFacts) -> tuple[str, str, str]:
    size = human_size(facts.size_bytes) if facts.size_bytes is not None else ""
    return facts.module, facts.requirement or size, facts.why


def _hooks(facts: PackageFacts) -> str:
    if not facts.hooks:
        return ""
    rows = [_hook(each) for each in facts.hooks]
    return html_details(counted(len(rows), "hook"), html_table(["kind", "on", "calls"], rows))


def _hook(each: HookFacts) -> tuple[str, str, str]:
    return each.spec.kind, " + ".join(each.spec.target), each.spec.callable.name


def _resources(facts: PackageFacts) -> str:
    saved = [each for each in facts.resources if not each.kind.goes_along]
    if not saved:
        return ""
    rows = [(each.record, each.kind.value, human_size(each.size_bytes)) for each in saved]
    return html_details(counted(len(rows), "resource"), html_table(["record", "kind", ""], rows))
