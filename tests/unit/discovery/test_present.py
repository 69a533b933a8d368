"""Comparison of the recorded environment with this one, without imports."""

import platform
import sys

import pytest

from modpack.core.environment import RecordedDistribution, RecordedEnvironment, RowStatus
from modpack.environment.comparison import compare, installed_version


def recorded(name="presentshop", version="1.0", **more):
    return RecordedEnvironment(
        providers={name: name}, distributions={name: RecordedDistribution(name, version)}, **more
    )


def status_of(environment, **options):
    (row,) = compare(environment, list(environment.providers), **options).rows
    return row.status


@pytest.fixture
def shop(installed):
    return installed(
        "presentshop", {"presentshop/__init__.py": "raise SystemExit"}, version="1.0+local"
    )


def test_installed_version_reads_metadata(shop):
    assert installed_version("presentshop") == installed_version("PresentShop") == "1.0+local"
    assert installed_version("presentnothing") is installed_version("") is None


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("1.0+local", RowStatus.SAME),
        ("1.0", RowStatus.SIMILAR),
        ("1.0+other", RowStatus.SIMILAR),
        ("1.1", RowStatus.DIFFERENT),
        ("no version", RowStatus.DIFFERENT),
    ],
)
def test_compare_reports_version_status(shop, version, status):
    assert status_of(recorded(version=version)) is status
    assert "presentshop" not in sys.modules


def test_compare_reports_missing_distribution_with_modules():
    (row,) = compare(recorded("presentgone"), ["presentgone.b", "presentgone"]).rows
    assert (row.status, row.installed) == (RowStatus.MISSING, None)
    assert row.modules == ("presentgone", "presentgone.b")
    assert row.requirement == "presentgone==1.0"


def test_compare_reports_unknown_version_of_loose_module(project):
    project({"presentloose.py": ""})
    assert status_of(recorded("presentloose")) is RowStatus.UNKNOWN


def test_compare_searches_modules_without_distribution(project):
    project({"presentloose/__init__.py": "", "presentloose/a.py": ""})
    externs = ["presentloose", "presentloose.a", "presentloose.b", "presentgone", "presentgone.c"]
    rows = compare(RecordedEnvironment(), externs).rows
    assert {row.name: row.status for row in rows} == {
        "presentgone": RowStatus.MISSING,
        "presentloose.b": RowStatus.MISSING,
        "presentloose": RowStatus.SAME,
    }


def test_compare_ignores_stdlib_torch_and_modpack():
    externs = ["json", "torch.nothing.there", "modpack.nothing", "os.path"]
    assert compare(RecordedEnvironment(), externs).rows == ()


@pytest.mark.parametrize(
    ("python", "status"),
    [
        (platform.python_version(), RowStatus.SAME),
        (f"{sys.version_info[0]}.{sys.version_info[1]}.99", RowStatus.SIMILAR),
        ("3.1.0", RowStatus.DIFFERENT),
    ],
)
def test_compare_tolerates_python_patch_version(python, status):
    assert status_of(RecordedEnvironment(python=python)) is status


def test_compare_reports_other_python_implementation():
    made = RecordedEnvironment(python=platform.python_version(), implementation="OtherPython")
    assert status_of(made) is RowStatus.DIFFERENT


def test_compare_reports_other_platform():
    here = RecordedEnvironment(platform=sys.platform, machine=platform.machine())
    there = RecordedEnvironment(platform="plan9", machine=platform.machine())
    assert (status_of(here), status_of(there)) == (RowStatus.SAME, RowStatus.DIFFERENT)


def test_compare_uses_version_of_loaded_torch():
    import torch

    (same,) = compare(RecordedEnvironment(torch=torch.__version__), ()).rows
    (other,) = compare(RecordedEnvironment(torch="1.0.0+cu99"), ()).rows
    assert same.status is RowStatus.SAME
    assert (other.status, other.requirement) == (RowStatus.DIFFERENT, "torch==1.0.0")


def test_requirement_keeps_local_label_if_only_that_differs(shop):
    (row,) = compare(recorded(version="1.0+cu1"), ["presentshop"]).rows
    assert row.requirement == "presentshop==1.0+cu1"


def test_compare_whole_includes_all_recorded_distributions():
    others = {"presentgone": RecordedDistribution("presentgone", "1.0")}
    made = RecordedEnvironment(distributions=others)
    assert compare(made, ()).rows == ()
    assert status_of(made, whole=True) is RowStatus.MISSING


def test_compare_accepts_inconsistent_records():
    made = RecordedEnvironment(
        providers={"presenta": "x", "presentb": "nowhere"},
        distributions={"x": RecordedDistribution("presenty", "1.0")},
    )
    assert {row.name for row in compare(made, ["presenta", "presentb"]).rows} == {
        "presenty",
        "presentb",
    }
