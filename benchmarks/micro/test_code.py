"""Micro benchmarks of sources and rules."""

import ast

from modpack import PackageExporter, PackageImporter
from modpack.core.names import GlobGroup
from modpack.core.rules import Action, Owner, Rule, deciding_rule
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.scan_cache import ScanCache
from modpack.discovery.secrets import find_secrets

MODULES = [f"lib{number % 10}.part{number}.core" for number in range(1000)]


def test_parse_only(benchmark, source):
    """Only parse, which every scan of a syntax tree includes."""
    benchmark(ast.parse, source)


def test_scan_source(benchmark, source):
    assert benchmark(scan_source, source, "pkg.core", is_package=False).imports


def test_scan_cached_source(benchmark, source, tmp_path):
    cache = ScanCache(tmp_path / "scans")
    cache.scan(source, "pkg.core", False)
    assert benchmark(cache.scan, source, "pkg.core", False).imports


def test_find_secrets(benchmark, source):
    assert benchmark(find_secrets, source) == ()


def test_import_from_package(benchmark, source, tmp_path):
    """Import modules that are unpacked and compiled."""
    names = [f"unpacked{number}" for number in range(20)]
    with PackageExporter(tmp_path / "code.modpack") as exporter:
        for name in names:
            exporter.save_source_string(name, source.decode().replace("from . import other", ""))

    def import_all():
        importer = PackageImporter(tmp_path / "code.modpack")
        return [importer.import_module(name) for name in names]

    assert len(benchmark(import_all)) == len(names)


def test_match_modules(benchmark):
    group = GlobGroup(["lib1.**", "lib2.*.core", "**.part7.**"], exclude="lib1.part1.**")
    assert any(benchmark(lambda: [group.matches(module) for module in MODULES]))


def test_decide_modules(benchmark):
    rules = [Rule(Action.EXTERN, GlobGroup(f"other{number}.**")) for number in range(20)]
    rules.append(Rule(Action.INTERN, GlobGroup("lib*.**")))
    decided = benchmark(
        lambda: [deciding_rule(rules, module, Owner.INSTALLED) for module in MODULES]
    )
    assert all(decided)
