"""Facts about a package that no test has written to a file."""

from __future__ import annotations

from typing import Any

from modpack.report.facts import PackageFacts, StorageFacts


def package_of(path: str = "x", **facts: Any) -> PackageFacts:
    """Return the facts about a package without contents, except those given."""
    return PackageFacts(path, 10, "modpack 1", "ab" * 32, (), (), StorageFacts(0, 0), **facts)
