"""Update the generated parts of the pages of codes and of messages. Run it after changing a code.

A generated part is between a comment ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from modpack import errors
from modpack.core.plan import EmptyMatchError, PackagingError
from modpack.diagnostics import diagnostic_codes, implied_codes

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "reference" / "diagnostics.md"
MESSAGES = DOCS / "troubleshooting" / "error-messages.md"
_PART = re.compile(r"(<!-- generated: ([\w ]+) -->).*?(<!-- end -->)", re.DOTALL)
_GATED = "license"  # the only code with an argument


def render(page: str) -> str:
    """Return the page with up-to-date generated parts."""
    return _PART.sub(lambda part: f"{part[1]}\n\n{_PARTS[part[2]]()}\n\n{part[3]}", page)


def exceptions() -> list[type[Exception]]:
    """Return every public exception of modpack, sorted by code."""
    named = (getattr(errors, name) for name in errors.__all__)
    every = {PackagingError, EmptyMatchError, *(each for each in named if hasattr(each, "code"))}
    return sorted(every, key=lambda each: each.code)


def _table(where: str, *, without: str = "") -> str:
    lines = ["| code | severity | meaning | fix |", "|---|---|---|---|"]
    for kind in diagnostic_codes(where).values():
        if without not in kind.where:
            name = f"{kind.code}:GLOB" if kind.code == _GATED else kind.code
            code = f'<a id="{kind.code}"></a>`{name}`'
            lines.append(f"| {code} | {kind.severity.value} | {kind.meaning} | {kind.hint} |")
    return "\n".join(lines)


def _implications() -> str:
    codes = diagnostic_codes()
    implied = {kind.implies for kind in codes.values()}
    chains = (list(implied_codes(code)) for code in codes if code not in implied)
    return "\n".join(f"- {' > '.join(f'`{c}`' for c in chain)}" for chain in chains if chain[1:])


def _exceptions() -> str:
    return "\n\n".join("\n\n".join(_exception(each)) for each in exceptions())


def _exception(kind: type[Exception]) -> Iterator[str]:
    yield f"### `{kind.code}`"
    module = "modpack" if issubclass(kind, PackagingError) else "modpack.errors"
    yield f"`{module}.{kind.__name__}`{_built_in_bases(kind)}"
    text, *sections = re.split(r"\n+(?:Args|Attributes):\n", inspect.getdoc(kind) or "")
    yield text.replace("``", "`")
    fields = [_unwrapped(field) for each in sections for field in _fields(each)]
    if fields:
        yield "\n".join(f"- {field}" for field in fields)


def _built_in_bases(kind: type[Exception]) -> str:
    bases = [base for base in kind.__mro__ if not issubclass(base, errors.ModpackError)]
    bases = [b for b in bases if not any(issubclass(a, b) for a in bases if a is not b)]
    names = [
        f"`{'pickle.' if base.__module__ == '_pickle' else ''}{base.__name__}`"
        for base in bases
        if base.__module__ in ("builtins", "_pickle") and base is not Exception
    ]
    return f" (derives from {' and '.join(names)})" if names else ""


def _fields(section: str) -> list[str]:
    """Return the entries of a section, without the examples that may follow it."""
    return re.findall(r"^    \S.*(?:\n {8}.*)*", section.partition("\n\n")[0], re.MULTILINE)


def _unwrapped(field: str) -> str:
    name, _, text = re.sub(r"\s+", " ", field.strip()).partition(": ")
    return f"`{name}`: {text.replace('``', '`')}"


def _links() -> str:
    """Link every code to its row or section in the reference."""
    groups = {
        "Exceptions": [each.code for each in exceptions()],
        "Problems of a plan": list(diagnostic_codes("problem")),
        "Findings of audits": list(diagnostic_codes("audit")),
        "Findings of verification": list(diagnostic_codes("verify")),
    }
    return "\n\n".join(
        f"**{title}:** "
        + ",\n".join(f"[`{code}`](../reference/diagnostics.md#{code})" for code in codes)
        for title, codes in groups.items()
    )


_PARTS: dict[str, Callable[[], str]] = {
    "problems": lambda: _table("problem"),
    "audit codes": lambda: _table("audit"),
    "verify codes": lambda: _table("verify", without="audit"),
    "implications": _implications,
    "exceptions": _exceptions,
    "links": _links,
}

if __name__ == "__main__":
    for page in (PAGE, MESSAGES):
        page.write_text(render(page.read_text("utf-8")), "utf-8")
