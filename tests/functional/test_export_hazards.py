"""Exports in environments with conflicting or damaged distributions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from modpack import ModpackWarning, PackageExporter


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install a fake distribution of one module: ``installed("name", requires=["other"])``."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(name: str, source: str = "", requires: tuple[str, ...] = ()) -> Path:
        (site / f"{name}.py").write_text(source)
        info = site / f"{name}-1.5.dist-info"
        info.mkdir()
        lines = [f"Requires-Dist: {requirement}\n" for requirement in requires]
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n{''.join(lines)}"
        )
        (info / "RECORD").write_text(f"{name}.py,,\n{name}-1.5.dist-info/METADATA,,\n")
        return info

    return install


@pytest.mark.parametrize(
    "damage",
    [
        lambda info: (info / "METADATA").unlink(),
        lambda info: (info / "METADATA").write_text("Name only"),
        lambda info: (info / "METADATA").write_bytes(b"\xff\xfe\0"),
        lambda info: (info / "RECORD").unlink(),
        lambda info: (info / "RECORD").write_text(""),
        lambda info: (info / "direct_url.json").write_text("{not json"),
        lambda info: (info / "direct_url.json").write_text("[]"),
        lambda info: (info / "direct_url.json").write_text('{"dir_info": {"editable": true}}'),
        lambda info: (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: fake_wreck\nVersion: 1\nRequires-Dist: >>nonsense<<\n"
        ),
    ],
    ids=[
        "no metadata",
        "no fields",
        "no text",
        "no record",
        "empty record",
        "no json",
        "a list",
        "no url",
        "requires nonsense",
    ],
)
def test_damaged_distribution_does_not_stop_an_export(installed, damage):
    damage(installed("fake_wreck"))
    installed("fake_trainer", requires=("fake_wreck",))

    exporter = PackageExporter(None)
    exporter.use_preset("pinned")
    exporter.extern("fake_trainer")
    exporter.intern("fake_other")
    exporter.save_source_string("app", "import fake_trainer, fake_wreck")
    assert not exporter.close().problems
    assert "fake_wreck" not in sys.modules


def test_extern_that_imports_an_interned_distribution_is_reported(installed, project, tmp_path):
    installed("fake_trainer", "import fake_layers\n", requires=("fake_layers",))
    installed("fake_layers", "size = 3\n")
    project({"shed.py": "import fake_trainer, fake_layers\nclass Shed: pass\n"})
    exporter = PackageExporter(tmp_path / "a.modpack", self_test=True)
    exporter.use_preset("pinned")
    exporter.intern("fake_layers")
    exporter.save_pickle("m", "m.pkl", import_module("shed").Shed())
    with pytest.warns(ModpackWarning, match="fake_trainer is extern, but imports fake_layers"):
        plan = exporter.close()
    (note,) = [note for note in plan.notes if note.code == "extern-needs-interned"]
    assert note.hint == "Intern fake_trainer too, or extern fake_layers."
