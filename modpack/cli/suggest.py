"""``modpack suggest``: suggest rules for modules that no rule matches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modpack.cli._common import FILE, collect_warnings, command, show, write_json
from modpack.cli._config import GivenRule
from modpack.cli._planning import (
    PACKAGE,
    RESOURCE,
    PlanOptions,
    RulesCommand,
    close_exporter,
    open_exporter,
    planning_options,
    read_plan_options,
    warn_unreported,
)
from modpack.report.progress import working

if TYPE_CHECKING:
    from modpack.core.plan import MockUse, Plan
    from modpack.diagnostics import Diagnostic
    from modpack.report.suggest import RuleSuggester, RuleSuggestion, Suggestion


@command(
    "suggest",
    cls=RulesCommand,
    epilog="Exit status: 0 if the rules solve every problem, 1 if other problems remain, "
    "2 if TARGET cannot be built.",
)
@click.argument("target", metavar="[TARGET]", required=False, type=FILE)
@planning_options
@click.pass_context
def suggest_command(ctx: click.Context, /, target: str | None, as_json: bool, **_: object) -> bool:
    """Suggest rules for modules that no rule matches.

    modpack plans the package of TARGET without a preset and writes nothing. It suggests one rule
    for each distribution or top-level package that no rule matches, with reasons. The rules are
    shown as command-line options and as a table for pyproject.toml; they suffice to export TARGET
    with --preset none. With --preset hermetic, modpack suggests interning the
    distributions that can be interned.

    \b
    Examples:
      modpack suggest train.py:make_model
      modpack suggest train.py:make_model --mock 'wandb.**' --preset hermetic
    """
    options = read_plan_options(ctx, target)
    preset = options.preset if options.preset == "hermetic" else "pinned"
    suggestions, problems = _suggest_rules(options, preset)
    if as_json:
        from modpack.report.json_audit import suggest_document

        write_json(suggest_document(options.target.text, preset, suggestions, problems))
    else:
        _report_text(options, suggestions, problems)
    return bool(problems)


def _suggest_rules(
    options: PlanOptions, preset: str
) -> tuple[tuple[Suggestion, ...], tuple[Diagnostic, ...]]:
    """Return the rules to add, and the problems that they do not solve."""
    from modpack.cli._target import build, importable
    from modpack.discovery.distributions import DistributionIndex
    from modpack.exporting.presets import Portability
    from modpack.report.suggest import RuleSuggester, described, mockable

    index, native = DistributionIndex(), options.intern_native
    suggester = RuleSuggester(
        index, Portability(index, native) if preset == "hermetic" else None, native
    )
    with collect_warnings() as collected, importable(options.target.folder):
        model = build(options.target, options.debug)
        with working(f"Planning {options.target.text}"):
            plan, added = _plan_with_suggestions(replace(options, preset="none"), model, suggester)
            uses = _find_uses(plan, mockable(added, plan))
            suggestions = described(suggester, added, plan, uses)
    warn_unreported(plan, collected)
    return suggestions, plan.problems


def _plan_with_suggestions(
    options: PlanOptions, model: object, suggester: RuleSuggester
) -> tuple[Plan, list[RuleSuggestion]]:
    """Return a plan with rules added until they match every module, and these rules."""
    from modpack.cli._target import user_code_errors

    leading: list[RuleSuggestion] = []
    while True:
        rules = (GivenRule(each.action, each.patterns) for each in leading)
        with open_exporter(replace(options, rules=(*options.rules, *rules))) as exporter:
            with user_code_errors(f"packaging {options.target.text}", options.debug):
                exporter.save_pickle(PACKAGE, RESOURCE, model)
            added = list(leading)
            while new := _new_suggestions(suggester.advise(exporter.plan(), added), added):
                if any(each.comes_first for each in new):
                    break
                for each in new:
                    getattr(exporter, each.action.value)(each.patterns)
                added += new
            plan, _ = close_exporter(exporter)
        if not new:
            return plan, added
        leading += [each for each in new if each.comes_first]


def _new_suggestions(
    suggestions: Sequence[RuleSuggestion], added: Sequence[RuleSuggestion]
) -> list[RuleSuggestion]:
    """Return the suggestions that have not been added yet."""
    known = {(each.action, each.patterns) for each in added}
    return [each for each in suggestions if (each.action, each.patterns) not in known]


def _find_uses(plan: Plan, externs: Sequence[str]) -> tuple[MockUse, ...]:
    """Return the uses of extern modules in interned code."""
    from modpack.discovery.mock_usage import find_uses
    from modpack.report.facts import sources_here

    if not externs:
        return ()
    return find_uses(sources_here(plan), externs, plan.graph)


def _report_text(
    options: PlanOptions, suggestions: Sequence[Suggestion], problems: Sequence[Diagnostic]
) -> None:
    from modpack.report.suggest import suggestions_report
    from modpack.report.text import problems_report

    if suggestions:
        given = [(r.action, r.include, r.exclude, r.allow_empty) for r in options.rules]
        show(suggestions_report(suggestions, Path.cwd(), given))
    elif not problems:
        click.echo("Your rules match every module.", err=True)
    if problems:
        show(problems_report(problems, options.debug, Path.cwd()))
        click.echo("Rules cannot solve these problems.", err=True)
