"""What a pickle names and does, read off its opcodes: nothing is unpickled.

A pickle is a program for a small stack machine (PEP 307, PEP 3154; :mod:`pickletools` documents
the opcodes). All that it can reach in the interpreter that loads it, it has to name: with GLOBAL
or INST in one text, with STACK_GLOBAL by two texts on the stack, or by a call of a function that
takes names. The machine is followed as far as is needed to know these texts and what becomes of
what they name. Whatever cannot be followed is a flaw, and so is whatever could smuggle in
something that was not named.
"""

from __future__ import annotations

from modpack.discovery._picklemachine.following import run
from modpack.discovery._picklemachine.found import Found, MalformedError, Memo
from modpack.discovery.pickledvalues import (
    FlawKind,
    NameUse,
    PickledName,
    PickledSource,
    PickledStorage,
    PickleFlaw,
    PickleScan,
)

__all__ = [
    "FlawKind",
    "NameUse",
    "PickleFlaw",
    "PickleReader",
    "PickleScan",
    "PickledName",
    "PickledSource",
    "PickledStorage",
    "scan_pickle",
]


def scan_pickle(data: bytes) -> PickleScan:
    """Read what one pickle names.

    >>> import pickle, decimal
    >>> (name,) = scan_pickle(pickle.dumps([decimal.Decimal(1)])).names
    >>> str(name), name.use
    ('decimal.Decimal', <NameUse.CALLED: 'called'>)
    >>> scan_pickle(b"no pickle").flaws[0].kind
    <FlawKind.MALFORMED: 'malformed'>
    """
    return PickleReader().read(data)


class PickleReader:
    """Reads pickles that continue each other: one unpickler loads them, with one memo."""

    def __init__(self) -> None:
        self._memo = Memo()
        self._before = Found()

    def read(self, data: bytes, *, several: bool = False) -> PickleScan:
        """Read what is in a record.

        Args:
            data: the record.
            several: whether pickles may follow each other in it, up to its end.
        """
        found = Found(self._before)
        self._before = found
        end = 0
        try:
            end = run(found, self._memo, data, 0)
            while several and end < len(data):
                end = run(found, self._memo, data, end)
            if end < len(data):
                found.at = end
                found.add(FlawKind.TRAILING, f"{len(data) - end} bytes follow where it ends")
        except MalformedError as failure:
            found.add(FlawKind.MALFORMED, f"it is no pickle: {failure}")
        flaws = sorted(found.flaws.values(), key=lambda flaw: flaw.position)
        return PickleScan(
            found.names(),
            tuple(flaws),
            end,
            tuple(found.storages.values()),
            tuple(found.sources),
            tuple(found.nested),
        )
