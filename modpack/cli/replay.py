"""``modpack replay``: the trial that is stored in a package, once more, here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from modpack.cli._common import FILE, collected_warnings, command, warn, write, write_json
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.selftest.self_test import Replay


@command(
    "replay",
    epilog="Exit status: 0 if the package passed, 1 if it did not, 2 if FILE holds no trial or the "
    "policy refuses it.",
)
@click.argument("file", metavar="FILE", type=FILE)
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse a package that was made with other versions than those that are here.",
)
@click.option(
    "--policy",
    metavar="FILE",
    type=FILE,
    help="Refuse a package that asks for more than this policy allows (a TOML file).",
)
@click.option(
    "--verify",
    type=click.Choice(["code", "all"]),
    default="code",
    show_default=True,
    help="What to compare with its digests first: everything but tensors, or everything.",
)
def replay_command(
    file: str,
    strict: bool,
    policy: str | None,
    verify: str,
    as_json: bool,
) -> bool:
    """Repeat the trial that is stored in a package.

    A package that was saved with example inputs holds them, and the output that the live model
    gave. A clean interpreter loads the package, runs it on those inputs, and compares the output.

    This runs the package's code: replay only what you trust.

    \b
    Examples:
      modpack replay model.modpack
      modpack replay model.modpack --strict
      modpack replay model.modpack --policy trust.toml
    """
    from modpack.core.policy import TrustPolicy
    from modpack.selftest.self_test import replay

    with working(f"Replaying {file}"), collected_warnings() as collected:
        allowed = None if policy is None else TrustPolicy.from_toml(policy)
        outcome = replay(file, strict=strict, policy=allowed, verify=verify)
    for text in collected:
        warn(text)
    if as_json:
        write_json(
            {
                "file": outcome.file,
                "passed": outcome.passed,
                "reason": outcome.reason or None,
                "details": outcome.details,
                "log": outcome.log,
                "seconds": outcome.seconds,
                "recorded": outcome.recorded.to_json(),
            }
        )
    else:
        write(_text(outcome))
    return not outcome.passed


def _text(outcome: Replay) -> str:
    from modpack.core.text import counted, printable

    recorded = outcome.recorded
    if outcome.passed:
        how = "bit by bit" if recorded.deterministic else "in structure: it is not deterministic"
        outputs = counted(len(recorded.cases), "output")
        return f"passed: {outputs} compared {how}, in {outcome.seconds:.1f} seconds\n"
    lines = [f"failed: {outcome.reason}", *(f"  {line}" for line in outcome.details)]
    if outcome.log:
        lines += ["It wrote:", *(f"  {line}" for line in outcome.log.splitlines())]
    return "".join(f"{printable(line)}\n" for line in lines)
