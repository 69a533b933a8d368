"""Hooks of mkdocs: pages of the site, and parts of pages, that are not files below ``docs``.

The changelog and the security policy are where GitHub looks for them, in the root of the
repository. The home page shows the example of the README. The Python reference ends with the
docstrings of ``modpack.__all__``, which mkdocstrings fills in, and the reference of the command
line with the help of all commands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "project/changelog.md", "SECURITY.md": "project/security.md"}
"""The page of the site that has the text of a file in the root."""
HOME = {"README.md": "index.md"}
_BOOSTS = {"troubleshooting/error-messages.md": 1.5, "troubleshooting/faq.md": 1.5}
"""In the search, answers rank above other pages with the same words."""
_PART = re.compile(r"^<!-- site: (\w+) -->$", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose text is elsewhere."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_linked(text, source, page)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Let links to files in the root lead to the pages that show them, and fill in the parts."""
    if page.file.generated_by:
        return markdown
    page.meta.setdefault("search", {"boost": _BOOSTS.get(page.file.src_uri, 1)})
    text = _linked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
    return _PART.sub(lambda part: _PARTS[part[1]](), text)


def _linked(text: str, source: str, page: str) -> str:
    """Return the text of a file of the repository with links that work in a page of the site."""

    def link(found: re.Match[str]) -> str:
        target = relpath(f"{source}/../{found[1]}")
        in_site = (PAGES | HOME).get(target, target.removeprefix("docs/"))
        return relpath(in_site, f"{page}/..")

    return _LINK.sub(link, text)


def _docstrings() -> str:
    """List what modpack's ``__init__`` imports for type checkers, without importing torch."""
    tree = ast.parse((ROOT / "modpack" / "__init__.py").read_text(encoding="utf-8"))
    paths = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("modpack.")
        for alias in node.names
        if alias.asname and not alias.asname.startswith("_")
    }
    lines = ["## Docstrings", "What `help()` prints for each name in `modpack`."]
    lines += [f"::: {paths[name]}" for name in sorted(paths, key=str.lower)]
    return "\n\n".join(lines)


def _help_texts() -> str:
    """Show the help of all commands, as a terminal does."""
    from click import Command, Context, Group

    from modpack.cli import cli

    def describe(command: Command, context: Context) -> Iterator[str]:
        yield f"### {context.command_path} --help\n\n```text\n{command.get_help(context)}\n```"
        for name in command.list_commands(context) if isinstance(command, Group) else ():
            child = command.get_command(context, name)
            if child is not None:
                yield from describe(child, Context(child, parent=context, info_name=name))

    context = Context(cli, info_name="modpack", terminal_width=100)
    return "\n\n".join(["## Help of all commands", *describe(cli, context)])


def _example() -> str:
    """Return the first screen of the README, below its first paragraph, for the home page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Installation\n")[0]
    return _linked(text[text.index("```") :], "README.md", "index.md")


_PARTS = {"docstrings": _docstrings, "help": _help_texts, "example": _example}
"""What the site has in place of a comment ``<!-- site: NAME -->`` of a page."""
