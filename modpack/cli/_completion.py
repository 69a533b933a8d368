"""What shells offer for the arguments of commands; see click's shell completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["complete_code", "complete_file", "complete_module"]


def complete_file(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Let the shell offer files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def complete_code(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the codes of findings, behind a comma too."""
    from click.shell_completion import CompletionItem

    from modpack.report.auditing.codes import CODES
    from modpack.report.auditing.facts import Severity

    before, comma, begun = incomplete.rpartition(",")
    words = [*CODES, *(severity.value for severity in Severity), "licence:"]
    offered = [word for word in dict.fromkeys(words) if word.startswith(begun)]
    return [CompletionItem(f"{before}{comma}{word}") for word in offered]


def complete_module(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the modules of the package that the command line names, as far as it can be read."""
    from click.shell_completion import CompletionItem

    from modpack.errors import ModpackError

    try:
        # Before an option's value, click has not told arguments from one another yet.
        modules = _modules(ctx.params.get("file") or next(iter(ctx.args), ""))
    except (ModpackError, OSError):
        return []  # whoever presses the tab key is not helped by an error
    return [CompletionItem(module) for module in modules if module.startswith(incomplete)]


def _modules(file: str) -> list[str]:
    """The modules of a package: those that it holds, and the extern ones."""
    from modpack.archive.layout import EXTERN_MODULES, is_internal
    from modpack.archive.reader import open_archive

    with open_archive(file) as archive:
        code = [name for name in archive.names() if name.endswith(".py") and not is_internal(name)]
        held = [name.removesuffix(".py").removesuffix("/__init__") for name in code]
        listed = archive.read(EXTERN_MODULES) if archive.has(EXTERN_MODULES) else b""
    externs = listed.decode("utf-8", "replace").split("\n")
    names = {*(name.replace("/", ".") for name in held), *filter(None, externs)}
    return sorted(name for name in names if name.isprintable())
