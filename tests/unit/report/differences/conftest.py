"""Packages to compare, made by modpack's own exporter."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from modpack import PackageExporter


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Path]:
    """Make a package: ``package("a", sources={...}, objects={"m/m.pkl": obj}, mock=[...])``."""

    def make(
        name: str,
        sources: Mapping[str, str] | None = None,
        objects: Mapping[str, Any] | None = None,
        texts: Mapping[str, str] | None = None,
        mock: tuple[str, ...] = (),
        extern: tuple[str, ...] = (),
    ) -> Path:
        file = tmp_path / f"{name}.modpack"
        with PackageExporter(file) as exporter:
            exporter.mock(mock) if mock else None
            exporter.extern(extern) if extern else None
            exporter.intern("difflib_*.**")
            exporter.use_policy("pinned")
            for path, text in (sources or {}).items():
                is_package = path.endswith("/__init__.py")
                module = path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
                exporter.save_source_string(module, text, is_package)
            for record, obj in (objects or {}).items():
                folder, _, resource = record.rpartition("/")
                exporter.save_pickle(folder.replace("/", "."), resource, obj)
            for record, text in (texts or {}).items():
                folder, _, resource = record.rpartition("/")
                exporter.save_text(folder, resource, text)
        return file

    yield make
    for module in [each for each in sys.modules if each.startswith("difflib_shop")]:
        del sys.modules[module]
    importlib.invalidate_caches()
