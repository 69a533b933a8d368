"""Long import chains, deep expressions, whole libraries, and unparsable sources."""

from __future__ import annotations

import io

import pytest

from modpack import PackageExporter, PackagingError, PackagingErrorReason

CHAIN = 3_000


def test_chain_of_thousands_of_files_is_walked_to_its_end(tmp_path, monkeypatch):
    package = tmp_path / "longchain"
    package.mkdir()
    (package / "__init__.py").touch()
    for number in range(CHAIN):
        following = f"from . import m{number + 1}" if number + 1 < CHAIN else "END = True"
        (package / f"m{number}.py").write_text(following)
    monkeypatch.syspath_prepend(tmp_path)
    with PackageExporter(None) as exporter:
        exporter.intern("longchain.**")
        exporter.save_module("longchain.m0")
    assert len(exporter.interned_modules()) == CHAIN + 1
    assert len(exporter.plan().why(f"longchain.m{CHAIN - 1}")) == CHAIN


def test_chain_of_imports_in_functions_is_walked():
    with PackageExporter(io.BytesIO()) as exporter:
        for number in reversed(range(CHAIN)):
            body = f"def go():\n    import text_chain_{number + 1}" if number + 1 < CHAIN else ""
            exporter.save_source_string(f"text_chain_{number}", body)
    assert len(exporter.interned_modules()) == CHAIN
    dot = exporter.all_paths("text_chain_0", f"text_chain_{CHAIN - 1}")
    assert dot.count("->") == CHAIN - 1


@pytest.mark.parametrize(
    "source",
    [
        "x = " + "(" * 90 + "1" + ")" * 90,
        "x = " + " + ".join(["1"] * 2_500),
        "x = f" + ".f" * 2_500,
        "x = " + "-" * 2_500 + "1",
        "".join("if x:\n" + " " * (depth + 1) for depth in range(90)) + "import deep_target",
    ],
    ids=["parentheses", "sum", "attributes", "signs", "blocks"],
)
def test_deeply_nested_sources_are_walked(project, source):
    project({"deep_target.py": ""})
    with PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("deep_target")
        exporter.save_source_string("nested_code", source + "\nimport deep_target\n")
    assert exporter.interned_modules() == ["deep_target", "nested_code"]


@pytest.mark.filterwarnings("ignore:.*is computed at run time:modpack.errors.ModpackWarning")
def test_sympy_is_interned_as_a_whole(clean_python, tmp_path):
    target = tmp_path / "algebra.pt"
    with PackageExporter(target) as exporter:
        exporter.intern(["sympy.**", "mpmath.**"])
        exporter.extern("**")
        exporter.save_module("sympy")
        exporter.save_source_string(
            "algebra",
            "from sympy import symbols, expand\n"
            "def squared(): x = symbols('x'); return str(expand((x + 1) ** 2))\n",
        )
    assert "sympy.polys.numberfields.resolvent_lookup" in exporter.interned_modules()
    assert len(exporter.interned_modules()) > 500
    clean_python(
        """
        import sys, modpack
        sys.modules["sympy"] = sys.modules["mpmath"] = None  # hides the host's version
        importer = modpack.PackageImporter(target)
        assert importer.import_module("algebra").squared() == "x**2 + 2*x + 1"
        """,
        target=target,
    )


BROKEN = {
    "py2_print": ("x = 1\nprint 'hello'\n", 2),
    "open_bracket": ("\n\nx = (1,\n", 3),
    "bad_bytes": (b"x = 1\ny = '\xff'\n", None),
    "null_byte": (b"x = 1\n\0\n", None),
}


def test_unparsable_sources_are_reported_with_location(tmp_path, monkeypatch):
    for name, (source, _) in BROKEN.items():
        data = source if isinstance(source, bytes) else source.encode()
        (tmp_path / f"{name}.py").write_bytes(data)
    (tmp_path / "good_code.py").write_text("import beyond_it\n")
    (tmp_path / "beyond_it.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PackagingError) as failure, PackageExporter(io.BytesIO()) as exporter:
        exporter.intern("**")
        exporter.save_source_string("entry_code", f"import {', '.join(BROKEN)}, good_code")
    problems = {problem.subject: problem for problem in failure.value.problems}
    assert set(problems) == set(BROKEN)
    assert {p.code for p in problems.values()} == {PackagingErrorReason.SOURCE_NOT_PARSABLE}
    for name, (_, line) in BROKEN.items():
        place = str(problems[name].location)
        assert place.startswith(str(tmp_path / f"{name}.py"))
        assert line is None or place.endswith(f":{line}")
    assert "beyond_it" in exporter.interned_modules()


def test_unparsable_given_source_is_named_by_module():
    exporter = PackageExporter(io.BytesIO())
    exporter.save_source_string("given_badly", "x = 1\ndef")
    with pytest.raises(PackagingError, match=r"given_badly:2:") as failure:
        exporter.close()
    assert [p.subject for p in failure.value.problems] == ["given_badly"]


def test_export_with_kept_scans_writes_the_same_package(clean_python, tmp_path):
    package = tmp_path / "manymodules"
    package.mkdir()
    (package / "__init__.py").touch()
    for number in range(100):
        source = f"from . import m{number * 7 % 100}\n" + "def f():\n    import os\n" * 20
        (package / f"m{number}.py").write_text(source)
    everything = "\n".join(f"from manymodules import m{n}" for n in range(100))
    printed = clean_python(
        """
        import os, sys
        import modpack
        from modpack.discovery import scan_cache
        sys.path.append(str(folder))
        os.environ["MODPACK_CACHE_DIR"] = str(folder / "cache")
        scan, scanned = scan_cache.scan_source, []
        scan_cache.scan_source = lambda *source: scanned.append(source) or scan(*source)
        packages = []
        for number in range(2):
            target = folder / "made" / f"{number}"
            target.mkdir(parents=True)
            with modpack.PackageExporter(target / "many.pt") as exporter:
                exporter.intern("manymodules.**")
                exporter.save_source_string("everything", everything)
            packages.append((target / "many.pt").read_bytes())
            print(len(exporter.interned_modules()), len(scanned))
        print(packages[0] == packages[1])
        """,
        folder=tmp_path,
        everything=everything,
    ).stdout.split()
    assert printed == ["102", "102", "102", "102", "True"]
