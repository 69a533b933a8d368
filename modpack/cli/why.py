"""``modpack why``: explain why a module is in a package, from the package's own records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modpack.cli._command import command
from modpack.cli._options import PACKAGE, complete_module
from modpack.cli._output import show, write_json

if TYPE_CHECKING:
    from modpack.archive.base import Archive
    from modpack.core.plan import Plan
    from modpack.report.why import Why


@command(
    "why",
    epilog="Exit status: 0 if the package mentions MODULE, 2 if not or if it cannot be read.",
)
@click.argument("file", metavar="FILE", type=PACKAGE)
@click.argument("module", metavar="MODULE", shell_complete=complete_module)
@click.option("--all", "every_chain", is_flag=True, help="Show all import chains, shortest first.")
def why_command(file: str, module: str, every_chain: bool, as_json: bool) -> None:
    """Explain why a module is, or is not, in a package.

    modpack shows the decision about MODULE, its rule, and the shortest import chains that lead to
    it from the saved objects, with locations. FILE is a package written by modpack or
    torch.package, or the folder of an unzipped one. modpack reads it without executing or
    unpickling anything in it.

    \b
    Examples:
      modpack why model.modpack wandb
      modpack why model.modpack numpy.linalg --all
      modpack why model.modpack wandb --json | jq '.chains[0].links[] | [.path, .line]'
    """
    found = _explain(file, module, every_chain)
    if as_json:
        write_json(found)
    else:
        from modpack.report.why_text import why_report

        show(why_report(found))


def _explain(file: str, module: str, every_chain: bool) -> Why:
    from modpack.archive.reader import open_archive
    from modpack.report.package_info import read_evidence
    from modpack.report.why import mentions, read_observed, read_provider, why, with_mock_runtime

    with open_archive(file) as archive:
        plan = read_evidence(archive, with_uses=False)
        if not mentions(plan, module):
            plan = with_mock_runtime(archive, plan)
        if not mentions(plan, module):
            raise _unknown_module(archive, plan, module)
        provider = read_provider(archive, plan, module)
        observed = read_observed(archive, plan, module)
    return why(
        plan, module, path=file, every_chain=every_chain, provider=provider, observed=observed
    )


def _unknown_module(archive: Archive, plan: Plan, module: str) -> Exception:
    from modpack.core.names import similar_modules
    from modpack.core.text import printable
    from modpack.errors import ModpackError
    from modpack.report.why import mentions

    known = {*plan.decisions, *plan.graph.nodes()}
    near = similar_modules(module, sorted(name for name in known if mentions(plan, name)))
    hint = f"Did you mean {' or '.join(map(printable, near))}?" if near else ""
    return ModpackError(
        f"{archive.path}: the package neither contains nor imports module {module!r}", hint=hint
    )
