"""Comparison of packages, except tensors."""

from __future__ import annotations

import json

import pytest
import torch

from modpack import PackageExporter
from modpack.archive.reader import open_archive
from modpack.errors import ArchiveError, ModpackWarning, NotAPackageError
from modpack.report.diff import compare_packages
from modpack.report.diff_facts import Change, Contents, Part, SourceChoice
from modpack.report.diff_text import differences_lines
from modpack.writing.writer import ArchiveWriter

TILL = "difflib_shop/till.py"
LIBRARY = {
    "difflib_shop/__init__.py": "",
    TILL: "from . import drawer\n\n\ndef ring():\n    return 1\n",
    "difflib_shop/drawer.py": "def open_it():\n    pass\n",
}


def rewritten(file, target, changes):
    """A copy of a package with other contents for some records; None leaves one out."""
    with open_archive(file) as archive, ArchiveWriter(target) as writer:
        for name in archive.names():
            content = changes.get(name, archive.read(name))
            if name.startswith(".data/modpack/manifest.") or content is None:
                continue
            if name.endswith(".storage"):
                writer.write_storage(name, memoryview(content))
            else:
                writer.write(name, content)
        writer.commit()
    return target


def text_of(found):
    return "\n".join(line.text for line in differences_lines(found))


def by_module(found):
    return {each.subject: each for each in found.of(Part.MODULE)}


def values_of(found, part):
    """The value in the second package of each item of a part."""
    return {each.subject: each.fields[0].after for each in found.of(part)}


def test_compare_same_package_finds_no_difference(package):
    file = package("a", LIBRARY)
    found = compare_packages(file, file)
    assert found.identical
    assert found.passed
    assert "are identical" in text_of(found)


def test_compare_repeated_export_finds_no_difference(package):
    found = compare_packages(package("a", LIBRARY), package("b", LIBRARY))
    assert found.passed


def test_compare_ignores_order_of_records(package, tmp_path):
    first, second = tmp_path / "one.modpack", tmp_path / "two.modpack"
    for file, names in ((first, "xy"), (second, "yx")):
        with PackageExporter(file) as exporter:
            for name in names:
                exporter.save_text("t", f"{name}.txt", name)
    assert compare_packages(first, second).passed


def test_compare_lists_added_removed_and_changed_modules(package):
    other = {**LIBRARY, TILL: "import json\n\n\ndef ring():\n    return 2\n"}
    other["difflib_shop/new.py"] = "x = 1\n"
    del other["difflib_shop/drawer.py"]
    modules = by_module(compare_packages(package("a", LIBRARY), package("b", other)))
    assert modules["difflib_shop.new"].change is Change.ADDED
    assert modules["difflib_shop.drawer"].change is Change.REMOVED
    assert modules["difflib_shop.till"].contents is Contents.DIFFERENT
    assert "+    return 2" in modules["difflib_shop.till"].text.unified
    assert "difflib_shop" not in modules


def test_compare_lists_changed_decision_with_rule(package):
    sources = {**LIBRARY, TILL: "import numpy\n"}
    before = package("a", sources, extern=("numpy",))
    after = package("b", sources, mock=("numpy",))
    found = compare_packages(before, after)
    fields = {f.name: (f.before, f.after) for f in by_module(found)["numpy"].fields}
    assert fields["action"] == ("extern", "mock")
    assert fields["rule"] == ("extern('numpy')", "mock('numpy')")
    assert [(d.subject, d.change) for d in found.of(Part.DISTRIBUTION)] == [
        ("numpy", Change.REMOVED)
    ]


def test_compare_lists_imports_as_lines_of_sources_only(package):
    other = {**LIBRARY, TILL: f"import json\n{LIBRARY[TILL]}"}
    found = compare_packages(package("a", LIBRARY), package("b", other))
    changes = [(d.part, d.subject, d.change) for d in found.differences]
    assert changes == [
        (Part.MODULE, "difflib_shop.till", Change.CHANGED),
        (Part.MODULE, "json", Change.ADDED),
    ]


def test_compare_shows_sources_of_other_version_with_all(installed, tmp_path):
    files = []
    for version in ("1.0", "2.0"):
        source = f"version = '{version}'\n"
        installed("difflib-dist", {"difflib_dist.py": source}, version=version)
        for left in (tmp_path / "site-packages").glob("*.dist-info"):
            if not left.name.endswith(f"-{version}.dist-info"):
                (left / "METADATA").unlink()
                (left / "RECORD").unlink()
                left.rmdir()
        files.append(tmp_path / f"{version}.modpack")
        with PackageExporter(files[-1]) as exporter:
            exporter.intern("difflib_dist")
            exporter.save_source_string("difflib_own", "import difflib_dist\n")
    found = compare_packages(*files)
    module = by_module(found)["difflib_dist"]
    assert module.contents is Contents.DIFFERENT
    assert module.text is None
    assert values_of(found, Part.DISTRIBUTION) == {"difflib-dist": "2.0"}
    shown = by_module(compare_packages(*files, SourceChoice.ALL))["difflib_dist"]
    assert "+version = '2.0'" in shown.text.unified
    assert "difflib_dist  different code" in text_of(found)


def test_compare_source_choice_selects_sources(package):
    other = {**LIBRARY, TILL: "x = 1\n", "difflib_shop/new.py": "y = 2\n"}
    files = package("a", LIBRARY), package("b", other)
    everything = by_module(compare_packages(*files, SourceChoice.ALL))
    assert everything["difflib_shop.new"].text.unified[0] == "--- /dev/null"
    nothing = by_module(compare_packages(*files, SourceChoice.NONE))
    assert nothing["difflib_shop.till"].contents is Contents.DIFFERENT
    assert nothing["difflib_shop.till"].text is None


def test_compare_texts_line_by_line(package):
    before = package("a", texts={"t/x.txt": "one\ntwo\n", "t/y.txt": "y"})
    after = package("b", texts={"t/x.txt": "one\n2\n", "t/z.txt": "z"})
    resources = compare_packages(before, after).of(Part.RESOURCE)
    found = {each.subject: each for each in resources}
    assert found["t/x.txt"].text.unified[3:] == (" one", "-two", "+2")
    assert (found["t/y.txt"].change, found["t/z.txt"].change) == (Change.REMOVED, Change.ADDED)
    lines = text_of(compare_packages(before, after)).splitlines()
    assert "  ~ t/x.txt  file  size: 8 B -> 6 B; text: +1 -1" in lines
    assert "  - t/y.txt  file  1 B" in lines


def test_compare_lists_changed_pickle(package):
    before = package("a", objects={"m/m.pkl": {"x": 1}})
    after = package("b", objects={"m/m.pkl": {"x": 2}})
    (found,) = compare_packages(before, after).of(Part.RESOURCE)
    assert (found.subject, found.about, found.text) == ("m/m.pkl", "pickle", None)
    assert found.contents is Contents.DIFFERENT


def test_compare_lists_added_notes(package):
    dynamic = {**LIBRARY, TILL: "import importlib\nimportlib.import_module(open('x').read())\n"}
    with pytest.warns(match="computed at run time"):
        after = package("b", dynamic)
    found = compare_packages(package("a", LIBRARY), after)
    assert [(n.change, n.subject) for n in found.of(Part.NOTE)] == [
        (Change.ADDED, "dynamic-import")
    ]


def test_compare_lists_changed_environment(package, tmp_path):
    file = package("a", LIBRARY)
    with open_archive(file) as archive:
        environment = json.loads(archive.read(".data/modpack/environment.json"))
    environment.update(python="3.9.1", torch="1.0", machine="vax")
    content = json.dumps(environment).encode()
    other = rewritten(file, tmp_path / "b.modpack", {".data/modpack/environment.json": content})
    values = values_of(compare_packages(file, other), Part.PACKAGE)
    assert values == {"python": "3.9.1", "torch": "1.0", "machine": "vax"}


def test_compare_lists_unknown_records(package, tmp_path):
    file = package("a", LIBRARY)
    changes = {"byteorder": b"little ", ".data/python_version": b"3.0"}
    other = rewritten(file, tmp_path / "b.modpack", changes)
    found = compare_packages(file, other)
    assert {each.subject for each in found.of(Part.RECORD)} == {"byteorder", ".data/python_version"}
    assert not found.passed


def test_compare_ignores_duration_of_self_test(tmp_path):
    files = []
    for name in ("a", "b"):
        torch.manual_seed(0)
        files.append(tmp_path / f"{name}.modpack")
        with PackageExporter(files[-1], self_test=True) as exporter:
            exporter.extern("**")
            model = torch.nn.Linear(2, 2)
            exporter.save_model("m", "m.pkl", model, example_inputs=torch.ones(1, 2))
    with open_archive(files[0]) as archive:
        self_test = json.loads(archive.read(".data/modpack/self_test.json"))
    assert compare_packages(*files).passed
    failed = json.dumps({**self_test, "passed": False, "failure": "no"}).encode()
    other = rewritten(
        files[0], tmp_path / "failed.modpack", {".data/modpack/self_test.json": failed}
    )
    told = values_of(compare_packages(files[0], other), Part.SELF_TEST)
    assert told == {"passed": "false", "failure": "no"}


def test_compare_lists_examples_with_other_output(tmp_path, package):
    file = tmp_path / "tried.modpack"
    with PackageExporter(file, self_test=True) as exporter:
        exporter.extern("**")
        model = torch.nn.Linear(2, 2)
        exporter.save_model("m", "m.pkl", model, example_inputs=torch.ones(1, 2))
    with open_archive(file) as archive:
        (record,) = [name for name in archive.names() if name.startswith(".data/self-test-")]
        content = bytes(archive.size(record))
    found = compare_packages(file, rewritten(file, tmp_path / "b.modpack", {record: content}))
    changed = [(d.part, d.subject, d.change) for d in found.differences]
    assert changed == [(Part.RECORD, record, Change.CHANGED)]
    without = compare_packages(file, package("none"))
    assert without.of(Part.SELF_TEST)
    assert not any("self" in each.subject for each in without.of(Part.RECORD))


def test_compare_runs_no_code_and_escapes_names(package):
    evil = {**LIBRARY, TILL: "raise SystemExit('\x1b[2J')\n"}
    found = compare_packages(package("a", LIBRARY), package("b", evil), SourceChoice.ALL)
    text = text_of(found)
    assert "\x1b" not in text
    assert "+raise SystemExit('\\x1b[2J')" in text


def test_text_joins_similar_modules_of_library(package):
    many = {**LIBRARY, **{f"difflib_shop/m{n}.py": "" for n in range(30)}}
    text = text_of(compare_packages(package("a", LIBRARY), package("b", many)))
    assert "+ difflib_shop: 30 modules  interned" in text
    assert "difflib_shop.m7" not in text


def test_text_cuts_long_lists(package):
    objects = {"m/m.pkl": {f"w{n}": torch.zeros(1) for n in range(100)}}
    text = text_of(compare_packages(package("a", LIBRARY), package("b", objects=objects)))
    assert "and 60 more; --json lists them" in text


def test_compare_rejects_other_files(package, tmp_path):
    (tmp_path / "x").write_bytes(b"no zip")
    with pytest.raises(ArchiveError):
        compare_packages(package("a", LIBRARY), tmp_path / "x")
    with pytest.raises(NotAPackageError):
        compare_packages(tmp_path / "nowhere", package("b", LIBRARY))


def test_compare_rejects_source_with_wrong_digest(package, tmp_path):
    first = package("a", LIBRARY)
    second = package("b", {**LIBRARY, TILL: "x = 1\n"})
    with open_archive(second) as archive:
        for name in archive.names():
            target = tmp_path / "folder" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
    (tmp_path / "folder" / TILL).write_text("x = 2\n")
    with pytest.raises(ArchiveError, match="SHA-256"):
        compare_packages(first, tmp_path / "folder")


def test_text_lists_each_new_use_of_a_mock_in_a_self_test(tmp_path, project):
    project(
        {
            "difflog.py": "def log(x): pass\ndef flush(x): pass",
            "diffnet.py": """
            import torch, difflog
            class Net(torch.nn.Module):
                def __init__(self, names):
                    super().__init__()
                    self.names = names
                def forward(self, x):
                    for name in self.names:
                        try:
                            getattr(difflog, name)(x)
                        except NotImplementedError:
                            pass
                    return x
            """,
        }
    )
    from diffnet import Net

    files = []
    for names in (["log"], ["log", "flush"]):
        files.append(tmp_path / f"{len(names)}.modpack")
        with pytest.warns(ModpackWarning), PackageExporter(files[-1]) as exporter:
            exporter.intern("diffnet")
            exporter.mock("difflog")
            exporter.save_model("m", "m.pkl", Net(names), example_inputs=torch.ones(1))
    lines = [line.strip() for line in text_of(compare_packages(*files)).splitlines()]
    assert any(
        line.startswith("+ use of a mock: difflog.flush was called at diffnet.py:")
        for line in lines
    )
    assert not any("difflog.log was" in line for line in lines)
    lines = [line.strip() for line in text_of(compare_packages(*reversed(files))).splitlines()]
    assert any(
        line.startswith("- use of a mock: difflog.flush was called at diffnet.py:")
        for line in lines
    )
