"""On what a package with compiled modules runs: platform, machine, Python's ABI, C library."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass

__all__ = ["STABLE_ABI", "NativeTag", "is_machine_code"]

STABLE_ABI = "abi3"
"""Stands for Python's limited API (PEP 384), which every later Python 3 has."""

_LIBRARY = re.compile(r"\.(so|pyd|dll|dylib)(\.\d+)*$", re.IGNORECASE)
_ELF = b"\x7fELF"
_MACH_O = (b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe")
_MACH_O_FAT = b"\xca\xfe\xba\xbe"
_PE_STUB, _PE_PLACE, _PE = b"MZ", 0x3C, b"PE\0\0"


def is_machine_code(name: str, start: bytes) -> bool:
    r"""Whether a file is a library or a program, by its name or by how it starts.

    Args:
        name: the file's name.
        start: its first bytes; a few hundred tell.

    >>> is_machine_code("lib/fast.so.1", b""), is_machine_code("words.bin", b"\x7fELF\2\1")
    (True, True)
    >>> is_machine_code("words.txt", b"MZ stands for ...")
    False
    """
    if _LIBRARY.search(name) or start.startswith((_ELF, *_MACH_O, _MACH_O_FAT)):
        return True
    header = int.from_bytes(start[_PE_PLACE : _PE_PLACE + 4], "little")
    return start.startswith(_PE_STUB) and start[header : header + 4] == _PE


@dataclass(frozen=True)
class NativeTag:
    """What compiled modules were built for.

    Attributes:
        platform: ``sys.platform``.
        machine: the processor (``x86_64``).
        abi: Python's ABI, as in the names of extension modules (``cpython-311-x86_64-linux-gnu``).
        libc: the C library's name where there are several (``glibc``), else ``""``.
    """

    platform: str
    machine: str
    abi: str
    libc: str = ""

    @staticmethod
    def here() -> NativeTag:
        """The tag of this interpreter."""
        import sysconfig

        abi = sysconfig.get_config_var("SOABI") or sysconfig.get_config_var("EXT_SUFFIX") or ""
        return NativeTag(sys.platform, platform.machine(), str(abi), platform.libc_ver()[0])

    @staticmethod
    def of(files: Iterable[str]) -> NativeTag:
        """The tag of extension modules that this interpreter can load.

        Args:
            files: their names; those with the stable ABI need no particular Python.
        """
        here = NativeTag.here()
        stable = all(f".{STABLE_ABI}." in name for name in files)
        return NativeTag(here.platform, here.machine, STABLE_ABI if stable else here.abi, here.libc)

    @staticmethod
    def from_json(record: object) -> NativeTag:
        """Read back what :meth:`to_json` gave.

        Raises:
            TypeError, KeyError: it is something else.
        """
        if not isinstance(record, dict):
            raise TypeError(f"{record!r} is no platform")
        return NativeTag(*(str(record[key]) for key in ("platform", "machine", "abi", "libc")))

    def to_json(self) -> dict[str, str]:
        """The tag as a package records it."""
        return asdict(self)

    def runs_on(self, other: NativeTag) -> bool:
        """Whether what has this tag can be loaded where ``other`` is the tag.

        >>> tag = NativeTag("linux", "x86_64", "abi3", "glibc")
        >>> tag.runs_on(NativeTag("linux", "x86_64", "cpython-313-x86_64-linux-gnu", "glibc"))
        True
        """
        same = (self.platform, self.machine, self.libc) == (
            other.platform,
            other.machine,
            other.libc,
        )
        return same and self.abi in (STABLE_ABI, other.abi)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.platform, self.machine, self.abi, self.libc)))
