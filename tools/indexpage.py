"""Build hook that sets the README and the URLs in the metadata for a package index.

An index page cannot follow the README's relative links. ``pyproject.toml`` contains the address of
the repository, from which this hook derives absolute links and the project's URLs. While the
address is empty, links become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class IndexPage(MetadataHookInterface):
    """Set the metadata fields that depend on the address of the repository."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README and the URLs."""
        repository = self.config["repository"].rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = for_index(readme, repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(repository)


def urls(repository: str) -> dict[str, str]:
    """Return the project's URLs, or none without a repository.

    Args:
        repository: Address of the repository without a trailing slash, or empty.
    """
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/blob/main/docs/index.md",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def for_index(text: str, repository: str) -> str:
    """Return Markdown with absolute instead of relative links, except in code blocks.

    Args:
        text: Markdown.
        repository: Address of the repository without a trailing slash. If it is empty, links become
            their text, and images their description.
    """

    def absolute(link: re.Match[str]) -> str:
        image, label, path = link.groups()
        if not repository:
            return label
        return f"{image}[{label}]({repository}/{'raw' if image else 'blob'}/main/{path})"

    pieces = _FENCE.split(text)
    return "".join(
        piece if piece.startswith("```") else _LINK.sub(absolute, piece) for piece in pieces
    )
