"""``modpack verify``: whether a package is whole, consistent, and what the loader allows."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FILE, command, show, write_json
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy


@command(
    "verify",
    epilog="Exit status: 0 if the package is accepted, 1 if it is refused, 2 if FILE is no package "
    "or could not be read.",
)
@click.argument("file", metavar="FILE", type=FILE)
@click.option(
    "--key",
    "keys",
    metavar="PUB",
    multiple=True,
    type=FILE,
    help="Demand a valid signature made with the key that belongs to this public one (a PEM "
    "file). May be repeated: one of them is enough.",
)
@click.option(
    "--policy",
    "policy",
    metavar="FILE",
    type=FILE,
    help="Demand what this policy demands (a TOML file).",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(min=1),
    help="Threads that compute digests; one for each core by default.",
)
def verify_command(
    file: str,
    keys: tuple[str, ...],
    policy: str | None,
    workers: int | None,
    as_json: bool,
) -> bool:
    """Verify a package: all of it is read, and nothing of it is run or unpickled.

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
    from modpack.report.verify import verify_package
    from modpack.security.signing_keys import read_public

    signers, trusted = tuple(map(read_public, keys)), _policy(policy)
    with working(f"Verifying {file}"):
        facts = verify_package(file, policy=trusted, keys=signers, workers=workers)
    if as_json:
        from modpack.report.json_output import document

        write_json(document(facts))
    else:
        from modpack.report.verify import verify_report

        show(verify_report(facts))
    return not facts.is_accepted


def _policy(path: str | None) -> TrustPolicy | None:
    if path is None:
        return None
    from modpack.core.policy import TrustPolicy
    from modpack.errors import ModpackWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModpackWarning)  # a finding says the same
        return TrustPolicy.from_toml(path)
