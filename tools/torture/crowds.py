"""Many at once: readers of a package that is being rewritten, processes that fill the cache."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from children import Child, Told
from packages import Tally, model

import modpack
from modpack import PackageImporter

_WRITERS = 2
_READERS = 4


def readers_and_writers(opens: int) -> Tally:
    """Readers open and load a package while writers replace it all the time.

    Each version has one number in all its tensors and the same in a text: a reader that sees two
    numbers has seen a mixture.
    """
    found = Tally()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "net.modpack"
        _write_version(target, 0)
        writers = [Child(partial(_rewrite, target, number)) for number in range(_WRITERS)]
        readers = [Child(partial(_read, target, opens // _READERS)) for _ in range(_READERS)]
        for reader in readers:
            _count(found, reader.wait())
        rewrites = Tally()
        for writer in writers:
            writer.kill(signal.SIGTERM)
            _count(rewrites, writer.wait())
        found.counts["rewrites"] = rewrites.tries
        found.wrong += rewrites.wrong
    return found


def cache_fills(processes: int, rounds: int) -> Tally:
    """Processes that load the same package for the first time at the same moment."""
    found = Tally()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "net.modpack"
        for number in range(rounds):
            _write_sources(target, number)
            cache = Path(folder) / f"cache{number}"
            start = time.time() + 0.2
            fill = partial(_fill, target, cache, start, number)
            for loading in [Child(fill) for _ in range(processes)]:
                _count(found, loading.wait())
            trees = [each for each in (cache / "trees").rglob("*") if each.suffix == ".tmp"]
            if trees:
                found.wrong.append(f"the cache keeps {[tree.name for tree in trees]}")
    return found


def _write_version(target: Path, number: int) -> None:
    made = model(0, size=32, layers=4)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(number)
    with modpack.PackageExporter(target) as exporter:
        exporter.use_preset("pinned")
        exporter.save_model("model", "model.pkl", made)
        exporter.save_text("model", "number.txt", str(number))


def _write_sources(target: Path, number: int) -> None:
    with modpack.PackageExporter(target) as exporter:
        for each in range(100):
            text = f"number = {number}\n" + "# filling\n" * 50
            exporter.save_source_string(f"many.m{each}", text)
        exporter.save_source_string("many", "", is_package=True)


def _rewrite(target: Path, writer: int) -> tuple[int, list[str]]:
    ends: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ends.append(1))
    written = 0
    while not ends:
        written += 1
        _write_version(target, 1 + written * _WRITERS + writer)
    return written, []


def _read(target: Path, times: int) -> tuple[int, list[str]]:
    wrong = []
    for _ in range(times):
        with PackageImporter(target) as importer:
            text = int(importer.load_text("model", "number.txt"))
            loaded = importer.load_pickle("model", "model.pkl")
            numbers = {float(value) for p in loaded.parameters() for value in p.detach().aminmax()}
        if numbers != {float(text)}:
            wrong.append(f"a mixture of {numbers} and {text}")
    return times, wrong


def _fill(target: Path, cache: Path, start: float, number: int) -> tuple[int, list[str]]:
    os.environ["MODPACK_CACHE_DIR"] = str(cache)
    time.sleep(max(0.0, start - time.time()))
    with PackageImporter(target) as importer:
        numbers = {importer.import_module(f"many.m{each}").number for each in range(100)}
    return 1, [] if numbers == {number} else [f"modules of {numbers} instead of {number}"]


def _count(found: Tally, told: Told) -> None:
    """What a child of :class:`Child` told: how often it did its work, and what was wrong."""
    if told.has_ended_well:
        tries, wrong = told.value
        found.tries += tries
        found.wrong += wrong
    else:
        found.wrong.append(f"a process ended with {told.error or told.signal}: {told.text}")
