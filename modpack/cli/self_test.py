"""``modpack self-test``: repeat the self-test that is stored in a package."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from modpack.cli._command import command
from modpack.cli._options import PACKAGE, isolated_option, load_options
from modpack.cli._output import collect_warnings, warn, write, write_json
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.options import OnMismatch, VerifyLevel
    from modpack.selftest.self_test import SelfTestResult


@command(
    "self-test",
    epilog="Exit status: 0 if the package passes, 1 if it fails, 2 if FILE contains no self-test "
    "or the trust policy rejects it.",
)
@click.argument("file", metavar="FILE", type=PACKAGE)
@isolated_option
@load_options
def self_test_command(
    file: str,
    isolated: bool,
    keys: tuple[str, ...],
    on_mismatch: OnMismatch,
    policy: str | None,
    verify: VerifyLevel,
    as_json: bool,
) -> bool:
    """Repeat the self-test that is stored in a package.

    A package that was exported with example inputs contains them and the model's output. A clean
    interpreter loads the package, runs it on these inputs, and compares the outputs.

    --isolated proves that the file and its requirements are enough: modpack first creates a virtual
    environment that has nothing else.

    This command executes the package's code. Only use it for packages that you trust.

    \b
    Examples:
      modpack self-test model.modpack
      modpack self-test model.modpack --on-mismatch error
      modpack self-test model.modpack --isolated
      modpack self-test model.modpack --policy trust.toml --key publisher.pub
    """
    from modpack.cli._running import read_trust, repeat_isolated

    trusted = read_trust(policy, keys)
    # The other interpreter repeats this command, and its exit status is ours.
    if isolated:
        raise Exit(repeat_isolated(file, trusted, verify))
    from modpack.selftest.self_test import self_test

    with working(f"Running the self-test of {file}"), collect_warnings() as collected:
        outcome = self_test(file, on_mismatch=on_mismatch, policy=trusted, verify=verify)
    for text in collected:
        warn(text)
    if as_json:
        write_json(outcome)
    else:
        write(_format(outcome))
    return not outcome.passed


def _format(outcome: SelfTestResult) -> str:
    from modpack.core.text import counted, printable

    recorded = outcome.recorded
    if outcome.passed:
        outputs = f"{counted(len(recorded.cases), 'output')} compared {recorded.extent}"
        if not recorded.cases:
            outputs = f"{counted(len(recorded.objects), 'object')} loaded, without examples"
        return f"passed: {outputs}, in {outcome.seconds:.1f} seconds\n"
    lines = [f"failed: {outcome.reason}", *(f"  {line}" for line in outcome.details)]
    if outcome.log:
        lines += ["Output of the self-test:", *(f"  {line}" for line in outcome.log.splitlines())]
    return "".join(f"{printable(line)}\n" for line in lines)
