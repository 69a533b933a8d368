"""Small pieces of HTML, for notebooks that show values; and a plan in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from modpack.core.actions import Action

if TYPE_CHECKING:
    from modpack.core.plan import Decision, Plan

__all__ = ["html_details", "html_heading", "html_list", "html_table", "plan_html"]

_MOST_ROWS = 200
_COLOURS = {
    Action.INTERN: "#2e7d32",
    Action.EXTERN: "#0277bd",
    Action.MOCK: "#b26a00",
    Action.DENY: "#c62828",
}


def html_heading(text: str, more: str = "") -> str:
    """A title, and something beside it in grey."""
    beside = f' <span style="color:#888">{_text(more)}</span>' if more else ""
    return f"<div><b>{_text(text)}</b>{beside}</div>"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts; the rows beyond a few hundred are counted only.

    Args:
        head: the titles of the columns, if there are any.
        rows: a text for each column.

    >>> html_table(["module"], [["a<b"]])
    '<table><tr><th style="text-align:left">module</th></tr><tr><td \
style="text-align:left">a&lt;b</td></tr></table>'
    """
    shown = [_row("td", row) for row in rows[:_MOST_ROWS]]
    left = len(rows) - len(shown)
    more = [_row("td", [f"and {left} more"])] if left > 0 else []
    titles = [_row("th", head)] if head else []
    return f"<table>{''.join([*titles, *shown, *more])}</table>"


def html_list(texts: Iterable[str], colour: str = "") -> str:
    """A list of texts; empty if there is none."""
    style = f' style="color:{colour}"' if colour else ""
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    return f"<ul{style}>{items}</ul>" if items else ""


def html_details(summary: str, content: str, colour: str = "", *, is_open: bool = False) -> str:
    """A part that unfolds with a click.

    Args:
        summary: what is always shown, as text.
        content: what is unfolded, as HTML.
        colour: of the summary.
        is_open: whether it is unfolded at first.
    """
    style = f' style="color:{colour}"' if colour else ""
    state = " open" if is_open else ""
    return f"<details{state}><summary{style}>{_text(summary)}</summary>{content}</details>"


def plan_html(plan: Plan) -> str:
    """A plan: problems and warnings first, then the modules of each decision."""
    counts = ", ".join(
        f"{len(modules)} {action.past}" for action in Action if (modules := plan.modules(action))
    )
    problems = [_sentence(p.subject, p.reason.value, p.context, p.place) for p in plan.problems]
    return "".join(
        [
            html_heading("modpack plan", counts or "no modules"),
            html_list(problems, _COLOURS[Action.DENY]),
            html_list(map(str, plan.warnings()), _COLOURS[Action.MOCK]),
            html_list([f"trial: {plan.trial}"] if plan.trial else []),
            *(_decided(plan, action) for action in Action),
        ]
    )


def _decided(plan: Plan, action: Action) -> str:
    modules = plan.modules(action)
    if not modules:
        return ""
    rows = [_decision(plan.decisions[module]) for module in modules]
    table = html_table(["module", "rule"], rows)
    return html_details(f"{action.past}: {len(modules)}", table, _COLOURS[action])


def _decision(decision: Decision) -> tuple[str, str]:
    return decision.module, decision.why


def _sentence(subject: str, reason: str, context: str, place: str | None) -> str:
    details = ": ".join(filter(None, (place, context)))
    return f"{subject}: {reason}" + (f" ({details})" if details else "")


def _row(cell: str, texts: Iterable[str]) -> str:
    cells = "".join(f'<{cell} style="text-align:left">{_text(text)}</{cell}>' for text in texts)
    return f"<tr>{cells}</tr>"


def _text(text: str) -> str:
    """Text that is no markup, whatever is in it."""
    return escape(text, quote=True)
