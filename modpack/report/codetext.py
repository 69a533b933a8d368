"""The code of a package for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from modpack.core.names import root_of
from modpack.pickling.allowlist import is_dangerous
from modpack.security.packagecode import some
from modpack.report.pieces import indented
from modpack.report.wording import counted, printable
from modpack.security.code_listing import CodeListing

__all__ = ["code_lines"]


def code_lines(listing: CodeListing) -> Iterator[RenderableType]:
    """The code of a package for people: names that stand out first, and in red."""
    if listing.is_empty:
        yield Text("code  none: this package is data", "bold")
        return
    yield Text("code  runs with all rights of the process that loads it", "bold")
    for record, names in listing.names().items():
        bad = [name for name in names if is_dangerous(name.module, name.name)]
        if bad:
            text = f"{record} names {some([str(name) for name in bad], len(bad))}"
            yield indented(Text(printable(text), "bold red"), 2)
    for text in _summaries(listing):
        yield indented(Text(printable(text)), 2)


def _summaries(listing: CodeListing) -> Iterator[str]:
    if listing.sources:
        roots = Counter(record.partition("/")[0].removesuffix(".py") for record in listing.sources)
        told = [f"{root} {count}" for root, count in roots.most_common()]
        yield f"{counted(len(listing.sources), 'Python source')}: {some(told)}"
    for kind, found in (("machine code", listing.native), ("program", listing.programs)):
        if found:
            yield f"{counted(len(found), kind)}: {some(found)}"
    for record, names in listing.names().items():
        roots = Counter(root_of(name.module) for name in names)
        told = [f"{root} {count}" for root, count in roots.most_common()]
        functions = len(listing.pickles[record].sources)
        more = f", and holds {counted(functions, 'function')} by source" if functions else ""
        yield f"{record} names {len(names)} beyond data: {some(told)}{more}"
