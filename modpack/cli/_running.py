"""Shared parts of the commands that run packages: trust options and ``--isolated``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from modpack.cli._output import collect_warnings, warn
from modpack.errors import listed
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy
    from modpack.options import VerifyLevel


def read_trust(policy: str | None, keys: Sequence[str]) -> TrustPolicy | None:
    """Return the trust policy that ``--policy`` and ``--key`` describe together.

    Warnings about it are printed.

    Args:
        policy: A TOML file. None allows everything.
        keys: Files of public keys. The package must be signed with one of them.

    Raises:
        ModpackError: If a file cannot be read or is invalid.
        click.UsageError: If the policy accepts none of the keys.
    """
    from modpack.core.policy import TrustPolicy

    with collect_warnings() as collected:
        allowed = None if policy is None else TrustPolicy.from_toml(policy)
    for text in collected:
        warn(text)
    if not keys:
        return allowed
    from modpack.security.signing_keys import read_public

    signers = tuple(map(read_public, keys))
    if allowed is None:
        return TrustPolicy(allow_code=True, require_signature_from=signers)
    # Both must hold: a signer that only one of them trusts is not enough.
    accepted = {each.public_key for each in allowed.require_signature_from}
    both = tuple(each for each in signers if not accepted or each.public_key in accepted)
    if not both:
        raise click.UsageError(f"--key: the policy {policy} accepts none of these keys.")
    return dataclasses.replace(allowed, require_signature_from=both)


def repeat_isolated(
    package: str, policy: TrustPolicy | None, verify: VerifyLevel, formats: Sequence[str] = ()
) -> int:
    """Repeat the current command in an isolated environment and return its exit status.

    An installation can run code, so the package is checked before its requirements are installed.

    Args:
        package: The package, whose requirements the environment contains.
        policy: The trust policy.
        verify: The records whose digests are checked.
        formats: Formats of inputs and outputs, whose libraries it contains too.

    Raises:
        ModpackError: If the package is damaged or not trusted, or the environment cannot be
            created.
    """
    from modpack.archive.reader import local_source, open_archive
    from modpack.loading.checks import require_contents, require_trust, stricter_level
    from modpack.running.inputs import libraries_of
    from modpack.running.isolated import find_requirements, isolated_python, run_isolated

    file = local_source(package)
    with open_archive(file) as archive:
        require_contents(archive, stricter_level(verify, policy))
        if policy is not None:
            require_trust(archive, policy, file)
    # The package does not name libraries that only the command needs.
    extra = libraries_of(formats)
    # The process in the environment verifies signatures again.
    if policy is not None and policy.require_signature_from:
        extra = (*extra, "cryptography", "securesystemslib")
    found = find_requirements(file, extra)
    if found.omitted:
        warn(f"{package}: not installed in the isolated environment: {listed(found.omitted, 5)}")
    for note in found.notes:
        click.echo(f"{package}: {note}", err=True)
    with working(f"Creating an environment for {package}"):
        python = isolated_python(package, found)
    context = click.get_current_context()
    # The environment has no library that reads URLs.
    context.params = {n: file if each == package else each for n, each in context.params.items()}
    return run_isolated(python, command_line(context, without="isolated"))


def command_line(context: click.Context, without: str) -> list[str]:
    """Return the command line of a command from its parsed parameters.

    Args:
        context: The context of the command.
        without: Name of an option to omit.
    """
    options: list[str] = []
    arguments: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            if each is None or each is False or parameter.name == without:
                continue
            if isinstance(parameter, click.Argument):
                arguments.append(str(each))
            elif each is True:
                options.append(parameter.opts[-1])
            else:
                options += [parameter.opts[-1], str(each)]
    # After --, a file name that starts with a dash is no option.
    return [context.info_name or "", *options, "--", *arguments]
