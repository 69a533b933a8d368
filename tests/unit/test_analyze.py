"""Analysis of calls and broken modules."""

from __future__ import annotations

import json
import sys

import pytest

import modpack
from modpack import analyze


def test_trace_dependencies_returns_modules_of_called_functions():
    def call(value):
        return json.loads(json.dumps(value))

    assert analyze.trace_dependencies(call, [({"a": 1},)]) == sorted(
        ["json", "json.decoder", "json.encoder", __name__]
    )


def test_every_input_is_called_and_the_profiler_is_put_back():
    calls = []
    before = sys.getprofile()
    analyze.trace_dependencies(lambda a, b: calls.append(a + b), [(1, 2), (3, 4)])
    assert calls == [3, 7]
    assert sys.getprofile() is before


def test_trace_dependencies_restores_profiler_after_error():
    before = sys.getprofile()
    with pytest.raises(ZeroDivisionError):
        analyze.trace_dependencies(lambda: 1 / 0, [()])
    assert sys.getprofile() is before


def test_functions_of_a_package_are_traced_under_their_names(packaged):
    importer = packaged({"traced.py": "import json\ndef f(x): return json.dumps(x)"})
    found = analyze.trace_dependencies(importer.import_module("traced").f, [([1],)])
    assert f"{importer.id()}.traced" in found and "json" in found


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match="callable"):
        analyze.trace_dependencies("json.dumps", [()])
    with pytest.raises(TypeError, match="inputs"):
        analyze.trace_dependencies(print, 3)
    with pytest.raises(TypeError, match="inputs"):
        analyze.trace_dependencies(print, [3])
    with pytest.raises(TypeError, match="exc"):
        analyze.find_first_use_of_broken_modules(ValueError())


def test_find_first_use_of_broken_modules_returns_chains(tmp_path):
    exporter = modpack.PackageExporter(tmp_path / "x.pt")
    exporter.deny("json")
    exporter.save_source_string("top", "import middle")
    exporter.save_source_string("middle", "import json")
    with pytest.raises(modpack.PackagingError) as caught:
        exporter.close()
    chains = analyze.find_first_use_of_broken_modules(caught.value)
    assert chains["json"][-2:] == ["middle", "json"]
