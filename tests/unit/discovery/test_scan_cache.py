"""Scans are cached by content, and a damaged cache never changes a result."""

import ast
import contextlib
import random
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from modpack.discovery import scan_cache
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.scan_cache import ScanCache, cached_scan

SOURCES = [
    b"import os\nfrom . import part as other\n",
    b"__all__ = ['x']\nx = 1\n",
    b"import importlib\ndef f(name): return importlib.import_module(name)\n",
    b"from pathlib import Path\ntext = (Path(__file__).parent / 'words.txt').read_text()\n",
    b"try:\n    import maybe\nexcept ImportError:\n    maybe = None\n",
    b"x = = 1\n",
    b"",
    "naïve = 'é'\n".encode("latin-1"),
]


def entries(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the modules whose sources were scanned."""
    done: list[str] = []

    def scan(source: bytes, module: str, is_package: bool) -> object:
        done.append(module)
        return scan_source(source, module, is_package)

    monkeypatch.setattr(scan_cache, "scan_source", scan)
    return done


@pytest.mark.parametrize("source", SOURCES)
def test_cached_scan_equals_scan(source: bytes, tmp_path: Path) -> None:
    for _ in range(2):
        found = ScanCache(tmp_path / "scans").scan(source, "pkg.mod", False)
        assert found == scan_source(source, "pkg.mod", False)


def test_scan_scans_source_once(tmp_path: Path, scans: list[str]) -> None:
    for _ in range(3):
        ScanCache(tmp_path / "scans").scan(b"import os", "pkg", True)
    assert scans == ["pkg"]


def test_cache_key_covers_inputs(tmp_path: Path, scans: list[str]) -> None:
    cache = ScanCache(tmp_path / "scans")
    asked = [
        (b"from . import a", "pkg.mod", False),
        (b"from . import a", "pkg.mod", True),
        (b"from . import a", "other.mod", False),
        (b"from . import b", "pkg.mod", False),
    ]
    for each in asked:
        assert cache.scan(*each) == scan_source(*each)
    assert len(scans) == len(entries(tmp_path)) == len(asked)


def test_cache_key_covers_scanner(
    tmp_path: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ScanCache(tmp_path / "scans").scan(b"import os", "pkg", True)
    monkeypatch.setattr(scan_cache, "_scanner_digest", lambda: b"another")
    ScanCache(tmp_path / "scans").scan(b"import os", "pkg", True)
    assert scans == ["pkg", "pkg"]


def test_damaged_entry_is_regenerated(tmp_path: Path, scans: list[str]) -> None:
    source, folder = b"import os", tmp_path / "scans"
    ScanCache(folder).scan(source, "pkg", True)
    (entry,) = entries(folder)
    good = entry.read_bytes()
    damaged = [good[:position] for position in range(0, len(good), 7)]
    damaged += [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good))]
    for content in damaged:
        entry.write_bytes(content)
        assert ScanCache(folder).scan(source, "pkg", True) == scan_source(source, "pkg", True)
        assert entry.read_bytes() == good
    assert len(scans) == 1 + len(damaged)


def test_parse_failure_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    source, folder = b"import os", tmp_path / "scans"
    with monkeypatch.context() as short_of_memory:
        short_of_memory.setattr(ast, "parse", fail)
        assert ScanCache(folder).scan(source, "pkg", True).failure is not None
    assert ScanCache(folder).scan(source, "pkg", True) == scan_source(source, "pkg", True)


def test_entry_with_other_layout_is_regenerated(tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    ScanCache(folder).scan(b"import os", "pkg", True)
    (entry,) = entries(folder)
    for body in (b"{}", b"[]", b"[1, 2, 3, 4, 5, 6]", b'[[["os"]], [], [], null, null, []]', b"7"):
        entry.write_bytes(scan_cache._checksum(body) + body)
        found = ScanCache(folder).scan(b"import os", "pkg", True)
        assert found == scan_source(b"import os", "pkg", True)


def test_concurrent_threads_agree(tmp_path: Path) -> None:
    asked = [(source, f"pkg.m{n % 3}", False) for n, source in enumerate(SOURCES * 20)]
    with ThreadPoolExecutor(8) as pool:
        caches = [ScanCache(tmp_path / "scans") for _ in range(4)]
        found = list(pool.map(lambda at: caches[at % 4].scan(*asked[at]), range(len(asked))))
    assert found == [scan_source(*each) for each in asked]
    assert not list(tmp_path.rglob("*.tmp"))


def test_uncreatable_folder_disables_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ScanCache(tmp_path / "file" / "scans")
    assert cache.scan(b"import os", "pkg", True) == scan_source(b"import os", "pkg", True)


def test_full_disk_disables_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scan_cache, "replace_file", full)
    cache = ScanCache(tmp_path / "scans")
    assert cache.scan(b"import os", "pkg", True) == scan_source(b"import os", "pkg", True)
    assert not entries(tmp_path)


def test_cache_rejects_folder_writable_by_others(tmp_path: Path, scans: list[str]) -> None:
    folder = tmp_path / "scans"
    ScanCache(folder).scan(b"import os", "pkg", True)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    ScanCache(folder).scan(b"import os", "pkg", True)
    assert scans == ["pkg", "pkg"]


def test_cached_scan_without_home_is_uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(scan_cache, "cache_folder", homeless)
    assert cached_scan() is scan_source


SECRET = b"token = 'ghp_" + b"Zq8xVb71LmPo93TtRwAaZq8xVb71LmPo93Tt'\n"


@pytest.mark.parametrize("source", SOURCES)
def test_clean_source_is_marked_clean(source: bytes, tmp_path: Path) -> None:
    assert not scan_source(source, "pkg.mod", False).is_clean  # the file was never scanned
    for _ in range(2):
        assert ScanCache(tmp_path / "scans").scan(source, "pkg.mod", False).is_clean


def test_source_with_secret_is_not_clean(tmp_path: Path) -> None:
    for _ in range(2):
        assert not ScanCache(tmp_path / "scans").scan(SECRET, "pkg.mod", False).is_clean
    assert all(b"Tr0ub4dor" not in entry.read_bytes() for entry in entries(tmp_path))


def test_entry_with_other_value_is_not_clean(tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    ScanCache(folder).scan(b"import os", "pkg", True)
    (entry,) = entries(folder)
    body = entry.read_bytes()[16:]
    assert body.endswith(b",true]")
    for other in (b"1", b'"true"', b"null", b"[true]"):
        changed = body.removesuffix(b"true]") + other + b"]"
        entry.write_bytes(scan_cache._checksum(changed) + changed)
        assert not ScanCache(folder).scan(b"import os", "pkg", True).is_clean


READING = """
import sys
from pathlib import Path
from modpack.discovery.scan_cache import ScanCache
from modpack.discovery.import_scanner import scan_source
cache = ScanCache(Path(folder))
for number in range(400):
    source = b"import os\\nimport m%d\\nx = '%s'" % (number % 40, b"y" * 1000)
    assert cache.scan(source, "pkg.mod", False) == scan_source(source, "pkg.mod", False)
"""


def test_concurrent_processes_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"folder = {str(tmp_path)!r}\n{READING}"]
    readers = [subprocess.Popen(command) for _ in range(3)]
    spoiler = random.Random(1)
    while any(reader.poll() is None for reader in readers):
        for entry in entries(tmp_path):
            with contextlib.suppress(FileNotFoundError):
                content = entry.read_bytes()
                damages = (b"", content[: len(content) // 2], content[::-1], bytes(len(content)))
                with entry.open("r+b") as there:  # a new file would not be a cache entry
                    there.truncate(0)
                    there.write(spoiler.choice(damages))
    assert [reader.wait() for reader in readers] == [0, 0, 0]
    assert not list(tmp_path.rglob("*.tmp"))


def test_killed_process_leaves_valid_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"folder = {str(tmp_path)!r}\n{READING}"]
    for _ in range(3):
        started = len(entries(tmp_path))
        writer = subprocess.Popen(command)
        while writer.poll() is None and len(entries(tmp_path)) <= started:
            pass
        writer.kill()
        writer.wait()
    subprocess.run(command, check=True)
