"""Build hook: metadata for a package index, whose pages cannot follow the README's relative links.

``pyproject.toml`` says where the project is published, in one place. From that follow the project's
URLs and the links of the README in the metadata. While it is empty, these links become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


class IndexPage(MetadataHookInterface):
    """Sets the fields of the metadata that depend on where the project is published."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README and the URLs."""
        repository = self.config["repository"].rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = for_index(readme, repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(repository)


def urls(repository: str) -> dict[str, str]:
    """The project's URLs; none if it is not published.

    Args:
        repository: The address of the repository, without a slash at its end; or empty.
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
    """Markdown with absolute links in place of relative ones; what code blocks show stays.

    Args:
        text: The Markdown.
        repository: The address of the repository, without a slash at its end; if it is empty,
            links become their text, and images their description.
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
