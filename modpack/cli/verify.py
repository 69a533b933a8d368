"""``modpack verify``: check a package's integrity, signatures, and trust policy."""

from __future__ import annotations

import click

from modpack.cli._command import command
from modpack.cli._options import FILE, PACKAGE, key_option
from modpack.cli._output import collect_warnings, show, write_json
from modpack.report.progress import working


@command(
    "verify",
    epilog="Exit status: 0 if the package passes, 1 if it fails, 2 if FILE is not a package or "
    "cannot be read.",
)
@click.argument("file", metavar="FILE", type=PACKAGE)
@key_option
@click.option(
    "--policy",
    "policy",
    metavar="FILE",
    type=FILE,
    help="Require that the package conforms to this trust policy (a TOML file).",
)
@click.option(
    "--code",
    "only_code",
    is_flag=True,
    help="Do not read tensors: check the digests of all other records.",
)
def verify_command(
    file: str,
    keys: tuple[str, ...],
    policy: str | None,
    only_code: bool,
    as_json: bool,
) -> bool:
    """Verify a package's structure, digests, and signatures.

    FILE is a package written by modpack or torch.package, or the folder of an unzipped one.
    modpack reads all of it without executing or unpickling anything in it; with --code, all but the
    tensors.

    modpack checks the structure of the archive, the digest of every record (including tensors), the
    consistency of the format's records, and the globals in pickles. --key checks signatures, and
    --policy checks a trust policy. The report lists every finding.

    \b
    Examples:
      modpack verify model.modpack
      modpack verify model.modpack --key team.pub
      modpack verify model.modpack --policy trust.toml --json
    """
    from modpack.core.policy import TrustPolicy
    from modpack.report.verify import verify_package
    from modpack.security.signing_keys import read_public

    # Before the package: a missing key must not look like a finding.
    signers = tuple(map(read_public, keys))
    with collect_warnings():  # a finding reports the same
        trusted = TrustPolicy.from_toml(policy) if policy is not None else None
    with working(f"Verifying {file}"):
        facts = verify_package(file, policy=trusted, keys=signers, only_code=only_code)
    if as_json:
        write_json(facts)
    else:
        from modpack.report.verify_text import verify_report

        show(verify_report(facts))
    return not facts.passed
