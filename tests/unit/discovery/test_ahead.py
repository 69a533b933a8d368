"""Helpers fill the scan cache; whatever becomes of them, the answers are the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modpack.discovery import scan_cache as ahead
from modpack.discovery import scan_helper as scanhelper
from modpack.discovery.import_scanner import scan_source
from modpack.discovery.scan_cache import ScanAhead, ScanCache
from modpack.discovery.walk import Coming

COUNT = 120


@pytest.fixture
def coming(tmp_path: Path) -> list[Coming]:
    """Sources on disk, of which none was ever scanned."""
    folder = tmp_path / "project"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"m{number}.py").write_text(f"import os\nimport x{number}\n" + "y = 1\n" * 50)
    return [Coming(str(folder / f"m{n}.py"), f"pkg.m{n}", False) for n in range(COUNT)]


def scanned(cache: ScanCache, coming: list[Coming]) -> bool:
    """Whether the cache knows all of them; says so if what it knows is wrong."""
    before = cache.misses
    for each in coming:
        source = Path(each.file).read_bytes()
        found = cache.scan(source, each.module, each.is_package)
        assert found == scan_source(source, each.module, each.is_package)
    return cache.misses == before


def entries(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def wait_for(condition: object) -> None:
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("helpers", [1, 2])
def test_helpers_scan_everything_that_comes(
    helpers: int, coming: list[Coming], tmp_path: Path
) -> None:
    cache = ScanCache(tmp_path / "scans")
    scans = ScanAhead(cache, helpers)
    scans.expect(coming)
    assert len(scans._helpers) == helpers
    wait_for(lambda: all(helper.poll() is not None for helper in scans._helpers))
    assert [helper.returncode for helper in scans._helpers] == [0] * helpers
    scans.end()
    assert len(entries(cache.folder)) == COUNT
    assert scanned(cache, coming)


def test_who_has_few_sources_does_not_ask_how_many_helpers_may_run(
    coming: list[Coming], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(ahead, "usable_cores", lambda: asked.append(True) or 2)
    cache = ScanCache(tmp_path / "scans")
    scans = ScanAhead(cache)
    assert not scans.is_worth_it(3)
    assert not scans.is_worth_it(COUNT)  # all of them may be known
    assert asked == []
    scanned(cache, coming[:10])
    assert scans.is_worth_it(COUNT) and scans.is_worth_it(COUNT)
    assert asked == [True]


def test_a_helper_begins_at_the_far_end(coming: list[Coming], tmp_path: Path) -> None:
    cache = ScanCache(tmp_path / "scans")
    scans = ScanAhead(cache, 1)
    scans.expect(coming)
    wait_for(lambda: entries(cache.folder))
    scans.end()
    assert scanned(cache, coming[-1:])


def test_ended_helpers_are_gone_and_leave_no_half_entries(
    coming: list[Coming], tmp_path: Path
) -> None:
    cache = ScanCache(tmp_path / "scans")
    for _ in range(3):
        scans = ScanAhead(cache, 2)
        before = len(entries(cache.folder))
        scans.expect(coming)
        helpers = list(scans._helpers)
        wait_for(lambda least=before: len(entries(cache.folder)) > least)
        scans.end()
        assert all(helper.returncode is not None for helper in helpers)
        assert not list(tmp_path.rglob("*.tmp"))
    scanned(cache, coming)


def test_few_sources_start_no_helper(coming: list[Coming], tmp_path: Path) -> None:
    scans = ScanAhead(ScanCache(tmp_path / "scans"), 2)
    scans.expect(coming[:20])
    assert not scans._helpers


def test_helpers_are_for_many_sources_of_which_some_were_not_known(
    coming: list[Coming], tmp_path: Path
) -> None:
    cache = ScanCache(tmp_path / "scans")
    scans = ScanAhead(cache, 1)
    assert not scans.is_worth_it(COUNT)  # they may all be known
    scanned(cache, coming[:10])
    assert scans.is_worth_it(COUNT)
    assert not scans.is_worth_it(10)
    warm = ScanCache(tmp_path / "scans")
    scanned(warm, coming[:10])
    assert not ScanAhead(warm, 1).is_worth_it(COUNT)
    assert not ScanAhead(cache, 0).is_worth_it(COUNT)


@pytest.mark.parametrize(
    "executable", ["", None, "python-that-is-not-there", "/usr/sbin/another-server", "/"]
)
def test_without_a_python_to_start_everything_is_scanned_here(
    executable: str | None, coming: list[Coming], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    cache = ScanCache(tmp_path / "scans")
    scans = ScanAhead(cache, 2)
    scans.expect(coming)
    assert not scans._helpers
    scanned(cache, coming)
    assert not scans.is_worth_it(COUNT)
    scans.end()


def test_helpers_that_die_cost_nothing_but_time(
    coming: list[Coming], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_START", "import os; os.abort()")
    cache = ScanCache(tmp_path / "scans")
    scans = ScanAhead(cache, 2)
    scans.expect(coming)
    scanned(cache, coming)
    scans.end()


def test_a_helper_that_does_not_end_is_killed(
    coming: list[Coming], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    mark = tmp_path / "started"
    stubborn += f"open({str(mark)!r}, 'w').close(); time.sleep(60)"
    monkeypatch.setattr(ahead, "_START", stubborn)
    monkeypatch.setattr(ahead, "_PATIENCE", 0.1)
    scans = ScanAhead(ScanCache(tmp_path / "scans"), 1)
    scans.expect(coming)
    (helper,) = scans._helpers
    wait_for(mark.exists)
    scans.end()
    assert helper.returncode is not None and helper.returncode != 0


def test_a_helper_ends_with_the_source_at_hand(coming: list[Coming], tmp_path: Path) -> None:
    lines = [f'["{each.file}", "{each.module}", false]\n'.encode() for each in coming]
    wanted = iter([True, True, False])
    scanhelper.scan_all(tmp_path / "scans", lines, lambda: next(wanted))
    assert len(entries(tmp_path / "scans")) == 2


def test_a_helper_works_for_nobody_else(coming: list[Coming], tmp_path: Path) -> None:
    line = f'["{coming[0].file}", "pkg.m0", false]\n'
    home, folder = str(Path(ahead.__file__).parents[2]), str(tmp_path / "scans")
    command = [sys.executable, "-I", "-S", "-c", ahead._START, home, folder]
    for asked_by, count in ((os.getpid() + 1, 0), (os.getpid(), 1)):
        subprocess.run([*command, str(asked_by)], input=line, text=True, check=True)
        assert len(entries(tmp_path / "scans")) == count


def test_what_a_helper_cannot_read_is_left_out(coming: list[Coming], tmp_path: Path) -> None:
    cache = ScanCache(tmp_path / "scans")
    Path(coming[-1].file).unlink()
    scans = ScanAhead(cache, 1)
    scans.expect(coming)
    wait_for(lambda: scans._helpers[0].poll() is not None)
    scans.end()
    assert len(entries(cache.folder)) == COUNT - 1


def test_a_helper_has_nothing_but_the_scanner() -> None:
    code = (
        f"import sys; sys.path.append({str(Path(ahead.__file__).parents[2])!r}); "
        "import modpack.discovery.scan_helper; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert not {"torch", "site", "importlib_metadata", "packaging", "multiprocessing"} & {*loaded}
    ours = {name.split(".")[1] for name in loaded if name.startswith("modpack.")}
    assert ours <= {"core", "discovery", "_version"}
