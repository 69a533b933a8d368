"""Many at once: readers of a package that is being rewritten, processes that fill the cache."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from packages import model

import modpack
from modpack import PackageImporter

__all__ = ["Crowd", "cache_fills", "readers_and_writers"]

_WRITERS = 2
_READERS = 4


@dataclass
class Crowd:
    """What came of many processes at once.

    Attributes:
        what: what they did.
        tries: how often it was done in all.
        wrong: what was wrong, one sentence each.
        meanwhile: how often something else was done at the same time.
    """

    what: str
    tries: int = 0
    wrong: list[str] = field(default_factory=list)
    meanwhile: int = 0


def readers_and_writers(opens: int) -> Crowd:
    """Readers open and load a package while writers replace it all the time.

    Each version has one number in all its tensors and the same in a text: a reader that sees two
    numbers has seen a mixture.
    """
    found = Crowd("readers and writers")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "net.modpack"
        _write_version(target, 0)
        writers = [_started(lambda n=n: _rewrite(target, n)) for n in range(_WRITERS)]
        share = opens // _READERS
        readers = [_started(lambda: _read(target, share)) for _ in range(_READERS)]
        for child, reading in readers:
            tries, wrong = _ended(child, reading)
            found.tries += tries
            found.wrong += wrong
        for child, reading in writers:
            os.kill(child, signal.SIGTERM)
            written, wrong = _ended(child, reading)
            found.meanwhile += written
            found.wrong += wrong
    return found


def cache_fills(processes: int, rounds: int) -> Crowd:
    """Processes that load the same package for the first time at the same moment."""
    found = Crowd("cache fills")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "net.modpack"
        for number in range(rounds):
            _write_sources(target, number)
            cache = Path(folder) / f"cache{number}"
            start = time.time() + 0.2
            fill = partial(_fill, target, cache, start, number)
            loading = [_started(fill) for _ in range(processes)]
            for child, reading in loading:
                tries, wrong = _ended(child, reading)
                found.tries += tries
                found.wrong += wrong
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
        exporter.use_policy("pinned")
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
    os.environ["MODPACK_CACHE"] = str(cache)
    time.sleep(max(0.0, start - time.time()))
    with PackageImporter(target) as importer:
        numbers = {importer.import_module(f"many.m{each}").number for each in range(100)}
    return 1, [] if numbers == {number} else [f"modules of {numbers} instead of {number}"]


def _started(work: Callable[[], tuple[int, list[str]]]) -> tuple[int, int]:
    """Do something in a child; its process id, and where it tells what came of it."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        try:
            told = work()
        except BaseException as failure:  # whatever it is, is told
            told = (0, [f"{type(failure).__name__}: {failure}"])
        os.write(writing, json.dumps(told).encode()[:60_000])
    finally:
        os._exit(0)


def _ended(child: int, reading: int) -> tuple[int, list[str]]:
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    if not told:
        return 0, ["a process ended without a word"]
    tries, wrong = json.loads(told)
    return tries, wrong
