"""Comparison of export and loading environment before packaged code runs."""

import json
import sys
import warnings

import pytest
import torch
from click.testing import CliRunner

import modpack
from modpack.archive.reader import open_archive
from modpack.cli import cli
from modpack.errors import (
    ArchiveError,
    EnvironmentMismatchError,
    EnvironmentMismatchWarning,
    ExternNotFoundError,
)
from modpack.writing.writer import ArchiveWriter

ENVIRONMENT = ".data/modpack/environment.json"


@pytest.fixture
def elsewhere(tmp_path):
    """Rewrite the recorded environment of a package: ``elsewhere(path, python="3.1.0")``."""

    def rewrite(path, change=None, **keys):
        copy = tmp_path / f"elsewhere-{path.name}"
        with open_archive(path) as archive, ArchiveWriter(copy) as writer:
            for name in archive.names():
                content = archive.read(name)
                if name == ENVIRONMENT:
                    record = {**json.loads(content), **keys}
                    if change is not None:
                        change(record)
                    content = json.dumps(record).encode()
                if name.endswith(".storage"):
                    writer.write_storage(name, memoryview(content))
                elif not name.startswith(".data/modpack/manifest."):
                    writer.write(name, content)
            writer.commit()
        return copy

    return rewrite


@pytest.fixture
def shop(installed, tmp_path):
    """A package whose code needs two made-up distributions, one of them in a function only."""
    site = installed("envshop-tea", {"envtea/__init__.py": "kind = 'green'"}, version="2.0")
    installed("envshop-cake", {"envcake.py": ""}, version="3.0")
    path = tmp_path / "shop.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.use_preset("pinned")
        exporter.save_source_string("envuser", "import envtea\ndef bake():\n    import envcake\n")
        exporter.save_text("envdata", "menu.txt", "tea")
    return path, site


def opened(path, **options):
    modpack.PackageImporter(path, **options).close()


def warned(path):
    with pytest.warns(EnvironmentMismatchWarning) as caught:
        opened(path)
    assert len(caught) == 1
    return caught[0].message


def test_load_in_equal_environment_does_not_warn(shop):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(shop[0])
        opened(shop[0], on_mismatch="error")


def test_load_lists_version_differences_in_one_warning(shop, elsewhere):
    def older(record):
        record["installed"]["envshop-tea"]["version"] = "1.9"

    told = warned(elsewhere(shop[0], older, python="3.1.4", torch="1.0.0"))
    here = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
    assert told.differences[0][:2] == ("Python", "3.1.4")
    assert told.differences[0][2].startswith(here)
    assert told.differences[1:] == (
        ("torch", "1.0.0", torch.__version__),
        ("envshop-tea", "1.9", "2.0"),
    )
    assert told.hint == "Run: pip install 'torch==1.0.0' 'envshop-tea==1.9'"
    assert told.hint in str(told)
    assert "envshop-cake" not in str(told)


def test_load_warns_once_per_package_and_process(shop, elsewhere):
    path = elsewhere(shop[0], python="3.2.1")
    warned(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path)


def test_warning_points_to_calling_code(shop, elsewhere):
    with pytest.warns(EnvironmentMismatchWarning) as caught:
        opened(elsewhere(shop[0], python="3.2.2"))
    assert caught[0].filename == __file__


def test_minor_differences_count_only_with_on_mismatch_error(shop, elsewhere):
    patch = f"{sys.version_info[0]}.{sys.version_info[1]}.99"
    version = torch.__version__.partition("+")[0] + "+elsewhere"
    path = elsewhere(shop[0], python=patch, torch=version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path)
    with pytest.raises(EnvironmentMismatchError) as raised:
        opened(path, on_mismatch="error")
    assert [name for name, *_ in raised.value.differences] == ["Python", "torch"]
    assert raised.value.hint == f"Run: pip install 'torch=={version}'"


def test_on_mismatch_error_raises_before_code_runs(project, tmp_path, elsewhere):
    project({"envmodel.py": "print('running')\nclass Model: pass\n"})
    import envmodel

    modpack.save(envmodel.Model(), tmp_path / "m.modpack")
    del sys.modules["envmodel"]
    path = elsewhere(tmp_path / "m.modpack", platform="plan9")
    load = modpack.load
    before = set(sys.modules)
    with pytest.raises(EnvironmentMismatchError, match="plan9") as raised:
        load(path, on_mismatch="error")
    assert "export it again" in raised.value.hint
    assert set(sys.modules) == before


@pytest.mark.parametrize("on_mismatch", [True, "raise", None])
def test_on_mismatch_rejects_unknown_choices(shop, on_mismatch):
    with pytest.raises((TypeError, ValueError), match="on_mismatch must be 'warn', 'error'"):
        modpack.PackageImporter(shop[0], on_mismatch=on_mismatch)


@pytest.fixture
def without(shop, monkeypatch):
    """The package of ``shop`` without its distributions."""
    path, site = shop
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(site)])
    sys.path_importer_cache.clear()
    return path


def test_load_lists_missing_modules_with_deferrable_ones_apart(without):
    told = warned(without)
    assert told.differences == (
        ("envshop-cake", "3.0", "missing, not needed to load"),
        ("envshop-tea", "2.0", "missing"),
    )
    assert told.hint == "Run: pip install 'envshop-cake==3.0' 'envshop-tea==2.0'"


@pytest.mark.filterwarnings("ignore::modpack.EnvironmentMismatchWarning")
def test_code_without_missing_module_can_be_used(without):
    with modpack.PackageImporter(without) as importer:
        assert importer.load_text("envdata", "menu.txt") == "tea"


@pytest.mark.filterwarnings("ignore::modpack.EnvironmentMismatchWarning")
def test_import_error_lists_other_missing_modules(without):
    importer = modpack.PackageImporter(without)
    with importer, pytest.raises(ExternNotFoundError, match="'envtea'") as raised:
        importer.import_module("envuser")
    assert raised.value.requirement == "envshop-tea==2.0"
    assert raised.value.others == (("envcake", "envshop-cake==3.0"),)
    assert "pip install 'envshop-tea==2.0' 'envshop-cake==3.0'" in str(raised.value)


def test_module_absent_at_export_is_not_reported(tmp_path):
    path = tmp_path / "absent.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.extern("envnowhere.**")
        source = "try:\n    import envnowhere\nexcept ImportError:\n    pass\n"
        exporter.save_source_string("envuser", source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path, on_mismatch="error")


def test_missing_loose_modules_are_reported(project, tmp_path):
    (project({"envloose.py": ""}) / "keep").touch()
    path = tmp_path / "loose.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.extern("envloose")
        exporter.save_source_string("envuser", "import envloose")
    next(tmp_path.glob("project*/envloose.py")).unlink()
    sys.path_importer_cache.clear()
    assert warned(path).differences == (("envloose", "extern", "missing"),)


def test_distributions_in_one_namespace_are_recorded_separately(installed, tmp_path):
    installed("envns-a", {"envns/a/__init__.py": ""}, version="1.0")
    installed("envns-b", {"envns/b.py": ""}, version="2.0")
    installed("envns-only", {"envonly/part.py": ""}, version="3.0")
    path = tmp_path / "ns.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.use_preset("pinned")
        source = "import envns.a, envns.b, envonly.part"
        exporter.save_source_string("envuser", source)
    with open_archive(path) as archive:
        record = json.loads(archive.read(ENVIRONMENT))
    assert record["providers"] == {
        "envns.a": "envns-a",
        "envns.b": "envns-b",
        "envonly.part": "envns-only",
    }


def test_torch_is_recorded_with_its_requirements(shop):
    with open_archive(shop[0]) as archive:
        record = json.loads(archive.read(ENVIRONMENT))
    assert record["installed"]["torch"]["version"] == torch.__version__
    assert set(record["installed"]["torch"]["requires"]) & set(record["installed"])


def test_mismatch_warning_escapes_names_for_terminal_and_shell(without, elsewhere):
    def hostile(record):
        record["installed"]["envshop-tea"].update(name="x'; reboot; '")
        record["installed"]["envshop-cake"].update(version="\x1b[2J\n")

    told = warned(elsewhere(without, hostile))
    assert "\x1b" not in str(told)
    assert len(told.differences) == 2
    assert "pip" not in told.hint


def test_damaged_environment_record_raises_archive_error(shop, elsewhere):
    with pytest.raises(ArchiveError) as raised:
        opened(elsewhere(shop[0], installed=[]))
    assert raised.value.record == ENVIRONMENT


def test_self_test_compares_environments_first(tmp_path, project, elsewhere):
    project({"envtried.py": "import torch\nclass M(torch.nn.ReLU): pass\n"})
    import envtried

    modpack.save(envtried.M(), tmp_path / "t.modpack", example_inputs=torch.ones(2))
    path = elsewhere(tmp_path / "t.modpack", machine="abacus")
    with pytest.raises(EnvironmentMismatchError, match="abacus"):
        modpack.self_test(path, on_mismatch="error")
    with pytest.warns(EnvironmentMismatchWarning, match="abacus"):
        assert modpack.self_test(path).passed


def test_self_test_command_reports_or_rejects_differences(tmp_path, project, elsewhere):
    project({"envreplayed.py": "import torch\nclass M(torch.nn.ReLU): pass\n"})
    import envreplayed

    modpack.save(envreplayed.M(), tmp_path / "t.modpack", example_inputs=torch.ones(2))
    path = str(elsewhere(tmp_path / "t.modpack", machine="abacus"))
    told = CliRunner().invoke(cli, ["self-test", path])
    assert told.exit_code == 0
    assert "Warning: " in told.stderr and "abacus" in told.stderr
    refused = CliRunner().invoke(cli, ["self-test", path, "--on-mismatch", "error", "--json"])
    assert refused.exit_code == 2
    assert json.loads(refused.stdout)["error"]["type"] == "EnvironmentMismatchError"
