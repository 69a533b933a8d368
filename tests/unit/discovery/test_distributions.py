from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modpack.core.environment import RecordedDistribution
from modpack.core.graph import CodeKind, Location
from modpack.core.names import is_stdlib, normalized
from modpack.core.rules import Owner
from modpack.discovery import distributions
from modpack.discovery.distributions import (
    DistributionIndex,
    InstalledDistribution,
    LazyDistribution,
)
from modpack.discovery.recorded_distributions import recorded_closure

Install = Callable[..., Path]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def install(site: Path) -> Install:
    def write(name: str, version: str, files: tuple[str, ...], **extra: str) -> Path:
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        requires = extra.pop("requires", "")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
        )
        (info / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files))
        for key, text in extra.items():
            (info / key.replace("__", ".")).write_text(text)
        for file in files:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).touch()
        return info

    return write


def at(file: Path | str, module: str = "fakepkg") -> Location:
    return Location(module, CodeKind.SOURCE, str(file))


def test_listed_file_belongs_to_its_distribution(site, install):
    install("Fake_Dist", "1.5", ("fakepkg/__init__.py", "fakepkg/part.py"))
    index = DistributionIndex()
    found = index.distribution_of("fakepkg.part", at(site / "fakepkg/part.py"))
    assert found is not None
    assert (found.name, found.version, found.pin) == ("Fake_Dist", "1.5", "Fake_Dist==1.5")
    assert index.owner("fakepkg", at(site / "fakepkg/__init__.py")) is Owner.INSTALLED


def test_loose_file_has_no_distribution(site, install, tmp_path):
    install("fakedist", "1.5", ("fakepkg/__init__.py",))
    index = DistributionIndex()
    for loose in (site / "fakepkg/added.py", tmp_path / "fakepkg/__init__.py", site / "fakepkg"):
        assert index.distribution_of("fakepkg", at(loose)) is None
        assert index.owner("fakepkg", at(loose)) is Owner.LOCAL
    assert index.owner("fakepkg", None) is Owner.LOCAL


def test_namespace_package_belongs_to_owner_of_its_files(site, install, tmp_path):
    install("north", "1.0", ("shared/north/__init__.py",))
    install("south", "2.0", ("shared/south/__init__.py",))
    install("apart", "1.0", ("sharedmore/__init__.py",))
    index = DistributionIndex()

    def folder(*places: Path) -> Location:
        return Location("shared", CodeKind.NAMESPACE, None, True, tuple(map(str, places)))

    found = index.distribution_of("shared", folder(site / "shared"))
    assert found is not None and found.name in ("north", "south")
    assert index.owner("shared", folder(site / "shared")) is Owner.INSTALLED
    # A namespace package with a loose folder has no distribution.
    (tmp_path / "own" / "shared").mkdir(parents=True)
    both = folder(site / "shared", tmp_path / "own" / "shared")
    assert index.owner("shared", both) is Owner.LOCAL


def test_listed_name_with_same_prefix_does_not_match(site, install):
    install("fakedist", "1.5", ("fakepkg.pyi",))
    assert DistributionIndex().distribution_of("fakepkg", at(site / "fakepkg.py")) is None


def test_editable_install_is_local_code(site, install, tmp_path):
    source = tmp_path / "checkout"
    info = {"url": source.as_uri(), "dir_info": {"editable": True}}
    install("fakedist", "1.5", ("__editable__.pth",), direct_url__json=json.dumps(info))
    index = DistributionIndex()
    found = index.distribution_of("fakepkg", at(source / "src/fakepkg.py"))
    assert found is not None and found.editable
    assert index.owner("fakepkg", at(source / "src/fakepkg.py")) is Owner.LOCAL
    inside = source / ".venv/lib/site-packages/x.py"
    assert index.distribution_of("x", at(inside)) is None


def test_folder_with_prefix_of_editable_install_does_not_match(site, install, tmp_path):
    info = {"url": (tmp_path / "checkout").as_uri(), "dir_info": {"editable": True}}
    install("fakedist", "1.5", ("__editable__.pth",), direct_url__json=json.dumps(info))
    beside = at(tmp_path / "checkout2/fakepkg.py")
    assert DistributionIndex([str(site)]).distribution_of("fakepkg", beside) is None
    itself = Location("checkout", CodeKind.NAMESPACE, None, True, (str(tmp_path / "checkout"),))
    assert DistributionIndex([str(site)]).distribution_of("checkout", itself) is not None


def test_editable_install_may_cover_root_folder(site, install, tmp_path):
    info = {"url": "file:///", "dir_info": {"editable": True}}
    install("fakedist", "1.5", ("__editable__.pth",), direct_url__json=json.dumps(info))
    found = DistributionIndex([str(site)]).distribution_of("fakepkg", at("/code/fakepkg.py"))
    assert found is not None and found.editable


@pytest.mark.parametrize("by", ["path file", "names"])
def test_editable_install_claims_importable_files_only(site, install, tmp_path, by):
    source = tmp_path / "checkout"
    info = {"url": source.as_uri(), "dir_info": {"editable": True}}
    says = {"top_level__txt": "fakepkg\n"} if by == "names" else {}
    install("fakedist", "1.5", ("fakedist.pth",), direct_url__json=json.dumps(info), **says)
    (site / "fakedist.pth").write_text(f"{source}/src\n")
    index = DistributionIndex()

    def owner(module: str, file: str) -> InstalledDistribution | None:
        return index.distribution_of(module, at(source / file, module))

    for module, file in {
        "fakepkg": "src/fakepkg/__init__.py",
        "fakepkg.part": "src/fakepkg/part.py",
    }.items():
        found = owner(module, file)
        assert found is not None and found.pin == "fakedist==1.5"
    for module, file in {"train": "examples/train.py", "other.part": "other/part.py"}.items():
        assert owner(module, file) is None
        assert index.owner(module, at(source / file, module)) is Owner.LOCAL


def test_file_with_two_module_names_is_looked_up_under_both(site, install, tmp_path):
    info = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    install("fakedist", "1.5", ("fakedist.pth",), direct_url__json=json.dumps(info))
    (site / "fakedist.pth").write_text(f"{tmp_path}\n")
    index, file = DistributionIndex(), tmp_path / "tools" / "fakepkg.py"
    assert index.distribution_of("fakepkg", at(file, "fakepkg")) is None
    assert index.distribution_of("tools.fakepkg", at(file, "tools.fakepkg")) is not None


def test_missing_record_falls_back_to_top_level_names(site):
    info = site / "oldstyle-2.0.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 1.2\nName: oldstyle\nVersion: 2.0\n")
    (info / "top_level.txt").write_text("oldpkg\n_oldhelp\n")
    index = DistributionIndex()
    found = index.distribution_of("oldpkg.x", at(site / "oldpkg/x.py"))
    assert found is not None and found.pin == "oldstyle==2.0"
    assert index.distribution_of("other", at(site / "other.py")) is None


def test_owner_of_stdlib_and_torch_needs_no_location():
    index = DistributionIndex()
    assert index.owner("json.decoder", None) is Owner.STDLIB
    assert index.owner("sys", None) is Owner.STDLIB
    assert index.owner("torch.nn", None) is Owner.RUNTIME
    assert index.owner("modpack.core", None) is Owner.RUNTIME
    assert index.owner("torchvision", None) is Owner.LOCAL
    assert is_stdlib("_thread") and not is_stdlib("numpy")


def test_required_closure_includes_indirect_requirements(site, install):
    install("fake_a", "1", ("a.py",), requires="Requires-Dist: Fake.B[extra]>=1\n")
    install("fake_b", "1", ("b.py",), requires='Requires-Dist: fake-c; python_version > "3"\n')
    install("fake_c", "1", ("c.py",), requires="Requires-Dist: fake_a; extra == 'loop'\n")
    index = DistributionIndex()
    found = index.distribution_of("a", at(site / "a.py"))
    assert found is not None
    assert index.required_closure(found) == {"fake-b", "fake-c"}


def test_named_normalizes_names():
    assert normalized("A.b--C__d") == "a-b-c-d"


def test_owner_of_stdlib_files_is_stdlib():
    index = DistributionIndex()
    # setuptools replaces distutils, which Python 3.10 and 3.11 still have.
    names = {name for name in sys.stdlib_module_names if not name.startswith("_")} - {"distutils"}
    assert {index.owner(name, None) for name in names} == {Owner.STDLIB}


def test_owner_of_file_that_shadows_stdlib_is_local(clean_python, tmp_path):
    (tmp_path / "statistics.py").write_text("")
    clean_python(
        """
        import sys
        sys.path.insert(0, folder)
        from modpack.discovery.distributions import DistributionIndex
        owner = DistributionIndex().owner
        assert owner("statistics", None).value == "local", owner("statistics", None)
        assert owner("json", None).value == owner("sys", None).value == "stdlib"
        """,
        folder=str(tmp_path),
    )


def test_unchanged_distribution_is_read_once(site, install, monkeypatch):
    info = install("fakedist", "1.5", ("fakepkg/__init__.py",), requires="Requires-Dist: other\n")
    read: list[str] = []
    original = LazyDistribution.text

    def counting(self: LazyDistribution, name: str) -> str:
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(LazyDistribution, "text", counting)
    where = at(site / "fakepkg/__init__.py")

    def asked() -> InstalledDistribution | None:
        return DistributionIndex([str(site)]).distribution_of("fakepkg", where)

    first = asked()
    assert first is not None and first.requires == {"other"}
    assert read
    read.clear()
    assert asked() == first
    assert read == []
    (info / "METADATA").write_text("Name: fakedist\nVersion: 1.5.1\n")
    changed = asked()
    assert changed is not None and (changed.version, changed.requires) == ("1.5.1", frozenset())


def test_files_installed_later_are_found(site, install):
    info = install("fakedist", "1.5", ("fakepkg/__init__.py",))
    later = at(site / "fakepkg/deep/part.py")
    assert DistributionIndex([str(site)]).distribution_of("fakepkg.deep.part", later) is None
    with (info / "RECORD").open("a") as record:
        record.write("fakepkg/deep/part.py,sha256=x,1\n")
    assert DistributionIndex([str(site)]).distribution_of("fakepkg.deep.part", later) is not None


def test_file_with_a_comma_in_its_name_belongs_to_its_distribution(site, install):
    info = install("fakedist", "1.5", ("fakepkg/__init__.py",))
    with (info / "RECORD").open("a") as record:
        record.write('"fakepkg/more/a,b.json",sha256=x,1\n')
    index = DistributionIndex([str(site)])
    assert index.distribution_of("fakepkg", at(site / "fakepkg/more/a,b.json")) is not None
    assert index.distribution_of("fakepkg", at(site / "fakepkg/more/a")) is None


def test_change_to_editable_install_is_detected(site, install, tmp_path):
    info = install("fakedist", "1.5", ())
    assert not DistributionIndex([str(site)]).named("fakedist").editable
    direct = {"url": (tmp_path / "src").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(direct))
    assert DistributionIndex([str(site)]).named("fakedist").editable


def test_removed_distribution_is_not_found(site, install):
    info = install("fakedist", "1.5", ())
    assert DistributionIndex([str(site)]).named("fakedist") is not None
    shutil.rmtree(info)
    assert DistributionIndex([str(site)]).named("fakedist") is None


def test_unrelated_distributions_are_not_read(site, install, tmp_path, monkeypatch):
    install("fakedist", "1.5", ("fakepkg/__init__.py",))
    looked_at: list[str] = []
    original = distributions.status_of
    monkeypatch.setattr(
        distributions, "status_of", lambda file: looked_at.append(file) or original(file)
    )
    mine = at(tmp_path / "project/mine.py", "mine")
    assert DistributionIndex([str(site)]).distribution_of("mine", mine) is None
    assert looked_at == []
    beside = at(site / "mine.py", "mine")
    assert DistributionIndex([str(site)]).distribution_of("mine", beside) is None
    assert looked_at != []


def test_editable_check_runs_once_per_index(site, install, tmp_path, monkeypatch):
    install("fakedist", "1.5", ("fakepkg/__init__.py",))
    asked: list[str] = []
    original = os.access
    monkeypatch.setattr(os, "access", lambda file, how: asked.append(file) or original(file, how))
    index = DistributionIndex([str(site)])
    for name in ("one", "two", "three"):
        mine = at(tmp_path / f"project/{name}/part.py", f"{name}.part")
        assert index.distribution_of(f"{name}.part", mine) is None
    assert len(asked) == 1
    again = at(tmp_path / "project/one/part.py", "one.part")
    assert DistributionIndex([str(site)]).distribution_of("one.part", again) is None
    assert len(asked) == 2


def test_distribution_of_normalizes_file_path(site, install):
    install("fakedist", "1.5", ("fakepkg/part.py",))
    for spelled in ("fakepkg/part.py", "fakepkg//part.py", "./fakepkg/./part.py"):
        place = Location("fakepkg.part", CodeKind.SOURCE, f"{site}/{spelled}")
        assert DistributionIndex([str(site)]).distribution_of("fakepkg.part", place) is not None


def test_changed_path_file_is_detected(site, install, tmp_path):
    direct = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    install("fakedist", "1.5", ("_fake.pth",), direct_url__json=json.dumps(direct))
    tool = at(tmp_path / "tools" / "tool.py", "tool")
    for folders, is_its_own in (["src"], False), (["src", "tools"], True), (["src"], False):
        lines = "".join(f"{tmp_path / folder}\n" for folder in folders)
        (site / "_fake.pth").write_text(lines)
        found = DistributionIndex([str(site)]).distribution_of("tool", tool)
        assert (found is not None) is is_its_own


def test_change_to_editable_install_is_detected_by_its_code(site, install, tmp_path):
    info = install("fakedist", "1.5", ("fakepkg/__init__.py",))
    mine = at(tmp_path / "project/mine.py", "mine")
    assert DistributionIndex([str(site)]).distribution_of("mine", mine) is None
    direct = {"url": (tmp_path / "project").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(direct))
    assert DistributionIndex([str(site)]).distribution_of("mine", mine).editable


def test_recorded_distribution_follows_changed_metadata(site, install):
    info = install("fakedist", "1.5", (), requires="License: MIT\n")

    def recorded() -> RecordedDistribution:
        index = DistributionIndex([str(site)])
        return recorded_closure(index, [index.named("fakedist")])["fakedist"]

    assert recorded().license == "MIT"
    assert recorded() is recorded()
    (info / "METADATA").write_text("Name: fakedist\nVersion: 1.5\nLicense: Apache-2.0\n")
    assert recorded().license == "Apache-2.0"
