"""``modpack verify``: whether a package is whole, consistent, and what the loader allows."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FINDINGS, complete_file, failing_clearly, show, write
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.core.policy import Signer, TrustPolicy
    from modpack.report.verify import VerifyFacts

_HELP = """\
Verify a package: all of it is read, and nothing of it is run or unpickled.

FILE is a package, or the folder of an unzipped one; modpack's or torch.package's.

Checked are the archive's structure, every record against its digest (tensors included), the
records of the format and whether they agree with each other, what pickles name and what sources
do when they are imported; with --key, signatures; with --policy, what the loader allows.
Everything that is wrong is told at once.

\b
Examples:
  modpack verify model.modpack
  modpack verify model.modpack --key team.pub
  modpack verify model.modpack --policy trust.toml --json
"""


@click.command(
    "verify",
    help=_HELP,
    epilog="Exit status: 0 if the package is accepted, 1 if it is refused, 2 if FILE is no package "
    "or could not be read.",
)
@click.argument("file", metavar="FILE", shell_complete=complete_file)
@click.option(
    "--key",
    "keys",
    metavar="PUB",
    multiple=True,
    shell_complete=complete_file,
    help="Demand a valid signature made with the key that belongs to this public one (a PEM "
    "file). May be repeated: one of them is enough.",
)
@click.option(
    "--policy",
    "policy",
    metavar="FILE",
    shell_complete=complete_file,
    help="Demand what this policy demands (a TOML file).",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Threads that compute digests; one for each core by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def verify_command(
    ctx: click.Context,
    file: str,
    keys: tuple[str, ...],
    policy: str | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Verify a package: all of it is read, and nothing of it is run or unpickled."""
    with failing_clearly(as_json):
        facts = _verified(file, keys, policy, workers)
        _report(facts, as_json)
    ctx.exit(0 if facts.is_accepted else FINDINGS)


def _verified(
    file: str, keys: tuple[str, ...], policy: str | None, workers: int | None
) -> VerifyFacts:
    from modpack.report.verify import verify_package

    signers, trusted = tuple(map(_signer, keys)), _policy(policy)
    with working(f"Verifying {file}"):
        return verify_package(file, policy=trusted, keys=signers, workers=workers)


def _signer(path: str) -> Signer:
    from modpack.security.signing_keys import read_public

    return read_public(path)


def _policy(path: str | None) -> TrustPolicy | None:
    if path is None:
        return None
    from modpack.core.policy import TrustPolicy
    from modpack.errors import ModpackWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModpackWarning)  # a finding says the same
        return TrustPolicy.from_toml(path)


def _report(facts: VerifyFacts, as_json: bool) -> None:
    if as_json:
        from modpack.report.json_output import dumps, verify_document

        write(dumps(verify_document(facts)))
    else:
        from modpack.report.verify import verify_report

        show(verify_report(facts))
