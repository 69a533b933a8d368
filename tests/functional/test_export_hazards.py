"""Warnings for extern modules that import interned ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modpack import PackageExporter
from modpack.diagnostics import Diagnostic, Severity


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


def hazards(fill: Callable[[PackageExporter], object]) -> list[Diagnostic]:
    exporter = PackageExporter(None)
    fill(exporter)
    plan = exporter.plan()
    assert not plan.problems, plan
    return [note for note in plan.notes if note.code == "extern-needs-interned"]


def test_local_extern_importing_interned_module_warns(project):
    root = project({"plugin_host.py": "import json\nimport plugin_core", "plugin_core.py": ""})

    def fill(exporter: PackageExporter) -> None:
        exporter.extern("plugin_host")
        exporter.intern("plugin_core")
        exporter.save_source_string("app", "import plugin_host, plugin_core")

    (note,) = hazards(fill)
    assert note.subject == "plugin_host"
    assert note.location == f"{root}/plugin_host.py:2"
    assert "its code imports plugin_core, which is interned" in note.message
    assert note.severity is Severity.WARNING


def test_warning_follows_other_local_code(project):
    project(
        {
            "outer_ring/__init__.py": "from outer_ring import inner",
            "outer_ring/inner.py": "def late():\n    import core_of_it",
            "core_of_it.py": "",
        }
    )

    def fill(exporter: PackageExporter) -> None:
        exporter.extern("outer_ring.**")
        exporter.intern("core_of_it")
        exporter.save_source_string("app", "import outer_ring, core_of_it")

    assert [note.subject for note in hazards(fill)] == ["outer_ring"]


def test_type_checking_import_has_no_warning(project):
    project(
        {
            "typist.py": "import typing\nif typing.TYPE_CHECKING:\n    import subject_of_it",
            "subject_of_it.py": "",
        }
    )

    def fill(exporter: PackageExporter) -> None:
        exporter.extern("typist")
        exporter.intern("subject_of_it")
        exporter.save_source_string("app", "import typist, subject_of_it")

    assert hazards(fill) == []


def test_extern_requiring_interned_distribution_warns(installed):
    installed("fake_trainer", requires=("Fake.Layers >= 1", "not_installed_one"))
    installed("fake_layers", requires=('fake_kernels; python_version >= "3"',))
    installed("fake_kernels")

    def fill(exporter: PackageExporter) -> None:
        exporter.extern("fake_trainer")
        exporter.intern("fake_kernels")
        exporter.save_source_string("app", "import fake_trainer, fake_kernels")

    (note,) = hazards(fill)
    assert note.subject == "fake_trainer"
    assert "its distribution requires that of fake_kernels" in note.message


def test_requirement_of_extra_has_no_warning(installed):
    installed(
        "fake_trainer",
        requires=("fake_layers; extra == 'all'", "fake_layers; python_version < '3'"),
    )
    installed("fake_layers")

    def fill(exporter: PackageExporter) -> None:
        exporter.extern("fake_trainer")
        exporter.intern("fake_layers")
        exporter.save_source_string("app", "import fake_trainer, fake_layers")

    assert hazards(fill) == []


def test_independent_externs_have_no_warning(installed, project):
    installed("fake_trainer", requires=("fake_layers",))
    installed("fake_layers")
    project({"my_own_code.py": ""})

    def fill(exporter: PackageExporter) -> None:
        exporter.extern("fake_*")
        exporter.intern("my_own_code")
        exporter.save_source_string("app", "import fake_trainer, fake_layers, my_own_code")

    assert hazards(fill) == []


def test_cyclic_requirements_terminate(installed):
    installed("fake_egg", requires=("fake_hen",))
    installed("fake_hen", requires=("fake_egg",))

    def fill(exporter: PackageExporter) -> None:
        exporter.extern("fake_hen")
        exporter.intern("fake_egg")
        exporter.save_source_string("app", "import fake_hen, fake_egg")

    assert len(hazards(fill)) == 1


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
