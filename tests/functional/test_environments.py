"""What a package was made with is compared with what is here, before any of its code runs."""

import json
import sys
import warnings

import pytest
import torch
from click.testing import CliRunner

import modpack
from modpack.archive.reader import open_archive
from modpack.archive.writer import ArchiveWriter
from modpack.cli import cli
from modpack.errors import (
    ArchiveError,
    EnvironmentMismatchError,
    EnvironmentMismatchWarning,
    ExternNotFoundError,
)

ENVIRONMENT = ".data/modpack/environment.json"


@pytest.fixture
def elsewhere(tmp_path):
    """Rewrites what a package records of its environment: ``elsewhere(path, python="3.1.0")``."""

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


def test_where_nothing_differs_nothing_is_said(shop):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(shop[0])
        opened(shop[0], on_mismatch="error")


def test_other_versions_are_told_in_one_warning_with_the_command_that_repairs_them(shop, elsewhere):
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
    assert told.repair == "pip install 'torch==1.0.0' 'envshop-tea==1.9'"
    assert told.repair in str(told)
    assert "envshop-cake" not in str(told)


def test_a_process_hears_of_a_package_once(shop, elsewhere):
    path = elsewhere(shop[0], python="3.2.1")
    warned(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path)


def test_the_warning_points_to_the_code_that_loads(shop, elsewhere):
    with pytest.warns(EnvironmentMismatchWarning) as caught:
        opened(elsewhere(shop[0], python="3.2.2"))
    assert caught[0].filename == __file__


def test_what_rarely_matters_is_told_to_the_strict_only(shop, elsewhere):
    patch = f"{sys.version_info[0]}.{sys.version_info[1]}.99"
    version = torch.__version__.partition("+")[0] + "+elsewhere"
    path = elsewhere(shop[0], python=patch, torch=version)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path)
    with pytest.raises(EnvironmentMismatchError) as raised:
        opened(path, on_mismatch="error")
    assert [name for name, *_ in raised.value.differences] == ["Python", "torch"]
    assert raised.value.hint == f"pip install 'torch=={version}'"


def test_strict_refuses_before_any_code_runs(project, tmp_path, elsewhere):
    project({"envmodel.py": "print('running')\nclass Model: pass\n"})
    import envmodel

    modpack.save(envmodel.Model(), tmp_path / "m.modpack")
    del sys.modules["envmodel"]
    path = elsewhere(tmp_path / "m.modpack", platform="plan9")
    load = modpack.load
    before = set(sys.modules)
    with pytest.raises(EnvironmentMismatchError, match="plan9") as raised:
        load(path, on_mismatch="error")
    assert raised.value.hint is None
    assert "export it again" in str(raised.value)
    assert set(sys.modules) == before


@pytest.mark.parametrize("on_mismatch", [True, "raise", None])
def test_on_mismatch_rejects_unknown_choices(shop, on_mismatch):
    with pytest.raises((TypeError, ValueError), match="on_mismatch must be 'warn', 'error'"):
        modpack.PackageImporter(shop[0], on_mismatch=on_mismatch)


@pytest.fixture
def without(shop, monkeypatch):
    """The package of ``shop`` where its distributions are not installed."""
    path, site = shop
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(site)])
    sys.path_importer_cache.clear()
    return path


def test_all_that_is_missing_is_told_at_once_and_what_can_wait_is_told_apart(without):
    told = warned(without)
    assert told.differences == (
        ("envshop-cake", "3.0", "missing, not needed to load"),
        ("envshop-tea", "2.0", "missing"),
    )
    assert told.repair == "pip install 'envshop-cake==3.0' 'envshop-tea==2.0'"


@pytest.mark.filterwarnings("ignore::modpack.EnvironmentMismatchWarning")
def test_what_needs_nothing_of_it_can_be_used_all_the_same(without):
    with modpack.PackageImporter(without) as importer:
        assert importer.load_text("envdata", "menu.txt") == "tea"


@pytest.mark.filterwarnings("ignore::modpack.EnvironmentMismatchWarning")
def test_the_import_that_fails_names_the_others_too(without):
    importer = modpack.PackageImporter(without)
    with importer, pytest.raises(ExternNotFoundError, match="'envtea'") as raised:
        importer.import_module("envuser")
    assert raised.value.requirement == "envshop-tea==2.0"
    assert raised.value.others == (("envcake", "envshop-cake==3.0"),)
    assert "pip install 'envshop-tea==2.0' 'envshop-cake==3.0'" in str(raised.value)


def test_what_was_not_there_when_the_package_was_made_is_not_missed(tmp_path):
    path = tmp_path / "absent.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.extern("envnowhere.**")
        source = "try:\n    import envnowhere\nexcept ImportError:\n    pass\n"
        exporter.save_source_string("envuser", source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(path, on_mismatch="error")


def test_loose_modules_that_are_missing_are_told(project, tmp_path):
    (project({"envloose.py": ""}) / "keep").touch()
    path = tmp_path / "loose.modpack"
    with modpack.PackageExporter(path) as exporter:
        exporter.extern("envloose")
        exporter.save_source_string("envuser", "import envloose")
    next(tmp_path.glob("project*/envloose.py")).unlink()
    sys.path_importer_cache.clear()
    assert warned(path).differences == (("envloose", "extern", "missing"),)


def test_distributions_that_share_a_namespace_are_recorded_apart(installed, tmp_path):
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


def test_torch_is_recorded_with_all_that_it_requires(shop):
    with open_archive(shop[0]) as archive:
        record = json.loads(archive.read(ENVIRONMENT))
    assert record["installed"]["torch"]["version"] == torch.__version__
    assert set(record["installed"]["torch"]["requires"]) & set(record["installed"])


def test_a_package_of_an_older_modpack_is_compared_as_far_as_it_says(shop, elsewhere):
    def older(record):
        for key in ("installed", "providers"):
            del record[key]
        record["externs"]["envtea"]["version"] = "1.5"

    told = warned(elsewhere(shop[0], older))
    assert told.differences == (("envshop-tea", "1.5", "2.0"),)


def test_texts_of_a_package_do_not_steer_a_terminal_or_a_shell(without, elsewhere):
    def hostile(record):
        record["installed"]["envshop-tea"].update(name="x'; reboot; '")
        record["installed"]["envshop-cake"].update(version="\x1b[2J\n")

    told = warned(elsewhere(without, hostile))
    assert "\x1b" not in str(told)
    assert len(told.differences) == 2
    assert told.repair is None


def test_a_damaged_record_is_an_archive_error(shop, elsewhere):
    with pytest.raises(ArchiveError) as raised:
        opened(elsewhere(shop[0], installed=[]))
    assert raised.value.record == ENVIRONMENT


def test_a_replay_compares_first(tmp_path, project, elsewhere):
    project({"envtried.py": "import torch\nclass M(torch.nn.ReLU): pass\n"})
    import envtried

    modpack.save(envtried.M(), tmp_path / "t.modpack", example_inputs=torch.ones(2))
    path = elsewhere(tmp_path / "t.modpack", machine="abacus")
    with pytest.raises(EnvironmentMismatchError, match="abacus"):
        modpack.self_test(path, on_mismatch="error")
    with pytest.warns(EnvironmentMismatchWarning, match="abacus"):
        assert modpack.self_test(path).passed


def test_the_replay_command_tells_differences_and_refuses_if_strict(tmp_path, project, elsewhere):
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
