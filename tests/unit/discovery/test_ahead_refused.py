"""Where helpers cannot be started or scans not be kept, sources are scanned here."""

from __future__ import annotations

import subprocess
from pathlib import Path

from modpack.discovery import scan_cache as scancache
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.scan_cache import ScanAhead, ScanCache
from modpack.discovery.walk import Coming


def test_whatever_forbids_processes_forbids_only_those(tmp_path, monkeypatch):
    def forbidden(*arguments, **options):
        raise KeyError("an audit hook may raise anything")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    helpers = ScanAhead(ScanCache(tmp_path), most_helpers=1)
    helpers.expect([Coming(__file__, f"pkg.m{n}", False) for n in range(100)])
    helpers.end()


def test_a_scanner_that_is_in_a_zip_keeps_no_scans(tmp_path, monkeypatch):
    def not_in_files():
        raise NotADirectoryError(20, "Not a directory", "modpack.zip/modpack")

    monkeypatch.setattr(scancache, "_scanner", not_in_files)
    cache = ScanCache(tmp_path)
    source = Path(__file__).read_bytes()
    assert cache.scan(source, "m", False) == scan_source(source, "m", False)
    assert not cache.is_writable
