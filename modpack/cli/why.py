"""``modpack why``: explain why a module is in a package, from the package's own records."""

from __future__ import annotations

import click

from modpack.cli._command import command
from modpack.cli._options import PACKAGE
from modpack.cli._output import show, write_json


@command(
    "why",
    epilog="Exit status: 0 if the package mentions MODULE, 2 if not or if it cannot be read.",
)
@click.argument("file", metavar="FILE", type=PACKAGE)
@click.argument("module", metavar="MODULE")
def why_command(file: str, module: str, as_json: bool) -> None:
    """Explain why a module is, or is not, in a package.

    modpack shows the decision about MODULE, its rule, a shortest import chain that leads to it from
    each saved object, and the other locations that import it. FILE is a package written by modpack
    or torch.package, or the folder of an unzipped one. modpack reads it without executing or
    unpickling anything in it.

    \b
    Examples:
      modpack why model.modpack wandb
      modpack why model.modpack numpy.linalg
      modpack why model.modpack wandb --json | jq '.chains[0].links[] | [.path, .line]'
    """
    from modpack.report.why import why_package

    found = why_package(file, module)
    if as_json:
        write_json(found)
    else:
        from modpack.report.why_text import why_report

        show(why_report(found))
