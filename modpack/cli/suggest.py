"""``modpack suggest``: rules for everything that no rule decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FILE, collected_warnings, command, show, write_json
from modpack.cli._config import GivenRule
from modpack.cli._planning import (
    PACKAGE,
    RESOURCE,
    Choices,
    RulesCommand,
    exporting,
    finished,
    planning_options,
    read_choices,
    warn_beyond,
)
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.core.plan import MockUse, Plan
    from modpack.diagnostics import Diagnostic
    from modpack.report.suggest import RuleSuggester, RuleSuggestion, Suggestion


@command(
    "suggest",
    cls=RulesCommand,
    epilog="Exit status: 0 if the rules suffice; 1 if problems remain that no rule solves; 2 if "
    "TARGET could not be built.",
)
@click.argument("target", metavar="[TARGET]", required=False, type=FILE)
@planning_options
@click.option("--debug", is_flag=True, help="Show import chains, and tracebacks of your own code.")
@click.pass_context
def suggest_command(ctx: click.Context, /, target: str | None, as_json: bool, **_: object) -> bool:
    """Suggest a rule for every module that no rule decides.

    Plans the package for TARGET without a preset, and shows all modules that the rules leave open,
    with a rule for each distribution or top-level package and the reasons for it: as options for
    the command line and as lines for a pyproject.toml. With them, `--preset none` exports it.
    Nothing is written.

    \b
    Examples:
      modpack suggest train.py:make_model
      modpack suggest train.py:make_model --mock 'wandb.**' --preset hermetic
    """
    choices = read_choices(ctx, target)
    preset = choices.preset if choices.preset == "hermetic" else "pinned"
    suggestions, problems = _suggested(choices, preset)
    if as_json:
        from modpack.report.json_output import suggestions_document

        write_json(suggestions_document(choices.target.text, preset, suggestions, problems))
    else:
        _report_text(choices, suggestions, problems)
    return bool(problems)


def _suggested(
    choices: Choices, preset: str
) -> tuple[tuple[Suggestion, ...], tuple[Diagnostic, ...]]:
    """The rules to add, and what is wrong even with them."""
    from modpack.cli._target import build, importable
    from modpack.discovery.distributions import DistributionIndex
    from modpack.exporting.presets import Portability
    from modpack.report.suggest import RuleSuggester, described, mockable

    index, native = DistributionIndex(), choices.intern_native
    adviser = RuleSuggester(
        index, Portability(index, native) if preset == "hermetic" else None, native
    )
    with collected_warnings() as collected, importable(choices.target.folder):
        model = build(choices.target, choices.debug)
        with working(f"Planning {choices.target.text}"):
            plan, given = _decided(replace(choices, preset="none"), model, adviser)
            uses = _uses(plan, mockable(given, plan))
            suggestions = described(adviser, given, plan, uses)
    warn_beyond(plan, collected)
    return suggestions, plan.problems


def _decided(
    choices: Choices, model: object, adviser: RuleSuggester
) -> tuple[Plan, list[RuleSuggestion]]:
    """The plan in which every module is decided, as far as rules can do that, and the rules."""
    from modpack.cli._target import packaging

    first: list[RuleSuggestion] = []
    while True:
        added = (GivenRule(each.action, each.patterns) for each in first)
        with exporting(replace(choices, rules=(*choices.rules, *added))) as exporter:
            with packaging(choices.target, choices.debug):
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


def _news(
    advice: Sequence[RuleSuggestion], given: Sequence[RuleSuggestion]
) -> list[RuleSuggestion]:
    """The advice that was not followed before; to follow it again would change nothing."""
    known = {(each.action, each.patterns) for each in given}
    return [each for each in advice if (each.action, each.patterns) not in known]


def _uses(plan: Plan, externs: Sequence[str]) -> tuple[MockUse, ...]:
    """What the code that goes along does with extern modules."""
    from modpack.discovery.mock_usage import find_uses
    from modpack.report.facts import sources_here

    if not externs:
        return ()
    return find_uses(sources_here(plan), externs, plan.graph)


def _report_text(
    choices: Choices, suggestions: Sequence[Suggestion], problems: Sequence[Diagnostic]
) -> None:
    from modpack.report.suggest import suggestions_report
    from modpack.report.text import problems_report

    if suggestions:
        given = [(r.action, r.include, r.exclude, r.allow_empty) for r in choices.rules]
        show(suggestions_report(suggestions, Path.cwd(), given))
    elif not problems:
        click.echo("Every module is decided by your rules: there is nothing to suggest.", err=True)
    if problems:
        show(problems_report(problems, choices.debug, Path.cwd()))
        click.echo("These problems remain, whatever the rules.", err=True)
