"""Rates of the machine, independent of any tool."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clocks import clock, read_through

_GIB = 1 << 30
_SIZE = _GIB // 2
_CORES = os.cpu_count() or 1
_PARSE = """\
import ast, time
line = "def name(first, second): return first[0].other(second, 1 + first)\\n"
source = line * ((1 << 18) // len(line))
started = time.perf_counter()
ast.parse(source)
print(time.perf_counter() - started)
"""


def rate(of: str) -> dict[str, float]:
    """Measure one operation on half a GiB, and return the seconds for a whole GiB."""
    data, file, work = memoryview(bytearray(b"\1") * _SIZE), Path(f"rate-{os.getpid()}"), RATES[of]
    if work in (_sum_mapped, _sum_read):
        import torch  # noqa: F401 - not part of the measurement

        _write(data, file)
        read_through(file)
    os.sync()
    with clock() as seconds:
        work(data, file)
    file.unlink(missing_ok=True)
    return {"for 1 GiB": seconds() * _GIB / _SIZE}


def make_files(count: int) -> dict[str, float]:
    """Create small files in a new folder, and return the seconds for a thousand.

    The files are not removed, because ext4 creates files slowly for minutes after many deletions.
    """
    folder = Path(f"files-{os.getpid()}")
    folder.mkdir()
    with clock() as seconds:
        for number in range(count):
            (folder / str(number)).write_bytes(bytes(1000))
    return {"for 1,000": seconds() * 1000 / count}


def parse_at_once() -> dict[str, float]:
    """Measure the reference work: parse a source in one process, then in one per core."""
    return {"one core": _seconds_to_parse(1), "all cores": _seconds_to_parse(_CORES)}


def _seconds_to_parse(processes: int) -> float:
    command = [sys.executable, "-c", _PARSE]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    return max(float(each.communicate()[0]) for each in running)


def _hash(data: memoryview, file: Path) -> None:
    hashlib.sha256(data).digest()


def _hash_on_all_cores(data: memoryview, file: Path) -> None:
    step = _SIZE // _CORES
    parts = [data[start : start + step] for start in range(0, _SIZE, step)]
    with ThreadPoolExecutor(_CORES) as pool:
        list(pool.map(lambda part: hashlib.sha256(part).digest(), parts))


def _checksum(data: memoryview, file: Path) -> None:
    zlib.crc32(data)


def _copy(data: memoryview, file: Path) -> None:
    bytes(data)


def _write(data: memoryview, file: Path) -> None:
    with file.open("wb", buffering=0) as opened:
        while data:
            data = data[opened.write(data) :]


def _write_synced(data: memoryview, file: Path) -> None:
    _write(data, file)
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _sum_mapped(data: memoryview, file: Path) -> None:
    import torch

    torch.from_file(str(file), shared=False, size=_SIZE // 4).sum()


def _sum_read(data: memoryview, file: Path) -> None:
    import torch

    content = bytearray(_SIZE)
    with file.open("rb", buffering=0) as opened:
        opened.readinto(content)
    torch.frombuffer(content, dtype=torch.float32).sum()


RATES: dict[str, Callable[[memoryview, Path], None]] = {
    "sha256, one core": _hash,
    "sha256, all cores": _hash_on_all_cores,
    "crc32, one core": _checksum,
    "copy to new memory": _copy,
    "write a new file": _write,
    "write and fsync a new file": _write_synced,
    "sum of a mapped file": _sum_mapped,
    "sum of a file read into memory": _sum_read,
}
"""Operations by name."""
