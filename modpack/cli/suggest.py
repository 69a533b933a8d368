"""``modpack suggest``: rules for everything that no rule decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FINDINGS, complete_file, failing_clearly, show, warn, write
from modpack.cli._dry_run import (
    PACKAGE,
    RESOURCE,
    Choices,
    chosen_settings,
    collected_warnings,
    exporting,
    finished,
    planning_options,
    read_choices,
    saving,
    untold,
)
from modpack.cli._target import GivenRule, RulesCommand
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.core.plan import NameUse, Plan, Problem
    from modpack.report.suggest import Advice, Adviser, Suggestion

_HELP = """\
Suggest a rule for every module that no rule decides.

Plans the package for TARGET without a policy, and shows all modules that the rules leave open, with
a rule for each distribution or top-level package and the reasons for it: as options for the
command line and as lines for a pyproject.toml. With them, `--policy none` exports it. Nothing is
written.

\b
Examples:
  modpack suggest train.py:make_model
  modpack suggest train.py:make_model --mock 'wandb.**' --policy hermetic
"""


@click.command(
    "suggest",
    cls=RulesCommand,
    help=_HELP,
    epilog="Exit status: 0 if the rules suffice; 1 if problems remain that no rule solves; 2 if "
    "TARGET could not be built.",
)
@click.argument("target", metavar="[TARGET]", required=False, shell_complete=complete_file)
@planning_options
@click.option("--debug", is_flag=True, help="Show import chains, and tracebacks of your own code.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def suggest_command(ctx: click.Context, /, as_json: bool, **_: object) -> None:
    """Suggest a rule for every module that no rule decides."""
    with failing_clearly(as_json):
        choices = read_choices(ctx, ctx.params["target"], chosen_settings(ctx))
        outcome = _suggested(choices)
        if as_json:
            _report_json(choices, outcome)
        else:
            _report_text(choices, outcome)
    ctx.exit(FINDINGS if outcome.problems else 0)


@dataclass(frozen=True)
class _Outcome:
    """The rules to add, what is wrong even with them, and the policy that they follow."""

    suggestions: tuple[Suggestion, ...]
    problems: tuple[Problem, ...]
    policy: str


def _suggested(choices: Choices) -> _Outcome:
    from modpack.cli._target import build, importable
    from modpack.report.suggest import described, mockable

    policy = choices.policy if choices.policy == "hermetic" else "pinned"
    adviser = _adviser(choices, policy)
    with collected_warnings() as collected, importable(choices.target.folder):
        model = build(choices.target, choices.debug)
        with working(f"Planning {choices.target.text}"):
            plan, given = _decided(replace(choices, policy="none"), model, adviser)
            uses = _uses(plan, mockable(given, plan))
            suggestions = described(adviser, given, plan, uses)
    for text in untold(collected, plan):
        warn(text)
    return _Outcome(suggestions, plan.problems, policy)


def _adviser(choices: Choices, policy: str) -> Adviser:
    from modpack.discovery.distributions import DistributionIndex
    from modpack.exporting.presets import Portability
    from modpack.report.suggest import Adviser

    index = DistributionIndex()
    native = choices.intern_native
    staying = Portability(index, native) if policy == "hermetic" else None
    return Adviser(index, staying, native)


def _decided(choices: Choices, model: object, adviser: Adviser) -> tuple[Plan, list[Advice]]:
    """The plan in which every module is decided, as far as rules can do that, and the rules."""
    first: list[Advice] = []
    while True:
        with exporting(_with(choices, first)) as exporter:
            with saving(choices):
                exporter.save_pickle(PACKAGE, RESOURCE, model)
            given = list(first)
            while new := _news(adviser.advise(exporter.plan(), given), given):
                if any(advice.comes_first for advice in new):
                    break
                for advice in new:
                    getattr(exporter, advice.action.value)(advice.patterns)
                given += new
            plan, _ = finished(exporter)
        if not new:
            return plan, given
        first += [advice for advice in new if advice.comes_first]


def _news(advice: Sequence[Advice], given: Sequence[Advice]) -> list[Advice]:
    """The advice that was not followed before; to follow it again would change nothing."""
    known = {(each.action, each.patterns) for each in given}
    return [each for each in advice if (each.action, each.patterns) not in known]


def _with(choices: Choices, advice: Sequence[Advice]) -> Choices:
    rules = (GivenRule(each.action, each.patterns) for each in advice)
    return replace(choices, rules=(*choices.rules, *rules))


def _uses(plan: Plan, externs: Sequence[str]) -> tuple[NameUse, ...]:
    """What the code that goes along does with extern modules."""
    from modpack.discovery.mock_reachability import callable_from_outside, find_uses
    from modpack.report.torch_package import sources_here

    if not externs:
        return ()
    callables = callable_from_outside(plan.graph)
    return find_uses(sources_here(plan), externs, callables, plan.graph)


def _report_json(choices: Choices, outcome: _Outcome) -> None:
    from modpack.report.json_output import dumps, suggestions_document

    text = choices.target.text
    document = suggestions_document(text, outcome.policy, outcome.suggestions, outcome.problems)
    write(dumps(document))


def _report_text(choices: Choices, outcome: _Outcome) -> None:
    from modpack.report.suggest import suggestions_report
    from modpack.report.text import problems_report

    if outcome.suggestions:
        given = [(r.action, r.include, r.exclude, r.allow_empty) for r in choices.rules]
        show(suggestions_report(outcome.suggestions, Path.cwd(), given))
    elif not outcome.problems:
        click.echo("Every module is decided by your rules: there is nothing to suggest.", err=True)
    if outcome.problems:
        show(problems_report(outcome.problems, choices.debug, Path.cwd()))
        click.echo("These problems remain, whatever the rules.", err=True)
