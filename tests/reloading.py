"""Objects that pass through a package, for tests."""

from __future__ import annotations

import io
from typing import Any

import modpack


def again(obj: Any) -> Any:
    """Save an object in a package in memory, and load it."""
    buffer = io.BytesIO()
    with modpack.PackageExporter(buffer) as exporter:
        exporter.extern("**")
        exporter.save_pickle("m", "o.pkl", obj)
    buffer.seek(0)
    return modpack.PackageImporter(buffer).load_pickle("m", "o.pkl")
