"""Concurrent access: reading a package during rewrites, and filling the cache in parallel."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from children import Child, ChildResult
from packages import Tally, model

import modpack
from modpack import PackageImporter

_WRITERS = 2
_READERS = 4


def read_while_writing(opens: int) -> Tally:
    """Open and load a package while other processes replace it.

    Each version has the same number in all tensors and in a text. Two different numbers are a
    mixture of two versions.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "net.modpack"
        _write_version(target, 0)
        writers = [Child(partial(_rewrite, target, number)) for number in range(_WRITERS)]
        readers = [Child(partial(_read, target, opens // _READERS)) for _ in range(_READERS)]
        for reader in readers:
            _add(tally, reader.wait())
        rewrites = Tally()
        for writer in writers:
            writer.kill(signal.SIGTERM)
            _add(rewrites, writer.wait())
        tally.counts["rewrites"] = rewrites.tries
        tally.wrong += rewrites.wrong
    return tally


def fill_cache(processes: int, rounds: int) -> Tally:
    """Load a new package in several processes at the same time."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "net.modpack"
        for number in range(rounds):
            _write_sources(target, number)
            cache = Path(folder) / f"cache{number}"
            start = time.time() + 0.2
            fill = partial(_fill, target, cache, start, number)
            for loading in [Child(fill) for _ in range(processes)]:
                _add(tally, loading.wait())
            leftovers = [each.name for each in (cache / "trees").rglob("*.tmp")]
            if leftovers:
                tally.wrong.append(f"the cache keeps {leftovers}")
    return tally


def _write_version(target: Path, number: int) -> None:
    net = model(0, size=32, layers=4)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(number)
    with modpack.PackageExporter(target) as exporter:
        exporter.use_preset("pinned")
        exporter.save_model("model", "model.pkl", net)
        exporter.save_text("model", "number.txt", str(number))


def _write_sources(target: Path, number: int) -> None:
    with modpack.PackageExporter(target) as exporter:
        for each in range(100):
            text = f"number = {number}\n" + "# padding\n" * 50
            exporter.save_source_string(f"many.m{each}", text)
        exporter.save_source_string("many", "", is_package=True)


def _rewrite(target: Path, writer: int) -> tuple[int, list[str]]:
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
    written = 0
    while not stops:
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
            wrong.append(f"loaded a mixture of {numbers} and {text}")
    return times, wrong


def _fill(target: Path, cache: Path, start: float, number: int) -> tuple[int, list[str]]:
    os.environ["MODPACK_CACHE_DIR"] = str(cache)
    time.sleep(max(0.0, start - time.time()))
    with PackageImporter(target) as importer:
        numbers = {importer.import_module(f"many.m{each}").number for each in range(100)}
    return 1, [] if numbers == {number} else [f"loaded {numbers}, not {number}"]


def _add(tally: Tally, result: ChildResult) -> None:
    """Add the attempts and failures of a child."""
    if result.is_success:
        tries, wrong = result.value
        tally.tries += tries
        tally.wrong += wrong
    else:
        ended = result.error or result.signal
        tally.wrong.append(f"a process ended with {ended}: {result.text}")
