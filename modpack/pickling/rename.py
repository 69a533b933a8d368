"""Renaming the modules that a finished pickle names.

An object that was loaded from a package lives under a private module path. The C pickler
writes the path that the object carries; in the new package it must be the real one.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Iterator, Mapping

__all__ = ["rename_modules"]

_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}


def rename_modules(data: bytes, renames: Mapping[str, str]) -> bytes:
    r"""Give modules in a pickle other names.

    Replaces them where a global is named, and, since protocol 4 shares strings between
    names and values, every string that equals one. Frames, which are optional (PEP 3154),
    are left out because their lengths change.

    Args:
        data: a pickle as ``pickle.Pickler`` writes it, of protocol 2 or later.
        renames: new module path by old module path.

    >>> import pickle, collections
    >>> old = pickle.dumps(collections.OrderedDict, protocol=4)
    >>> pickletools.dis(rename_modules(old, {"collections": "elsewhere"}))
        0: \x80 PROTO      4
        2: \x8c SHORT_BINUNICODE 'elsewhere'
       13: \x94 MEMOIZE    (as 0)
       14: \x8c SHORT_BINUNICODE 'OrderedDict'
       27: \x94 MEMOIZE    (as 1)
       28: \x93 STACK_GLOBAL
       29: \x94 MEMOIZE    (as 2)
       30: .    STOP
    highest protocol among opcodes = 4
    """
    return b"".join(_pieces(data, renames))


def _pieces(data: bytes, renames: Mapping[str, str]) -> Iterator[bytes]:
    operations = [
        (op.name, arg if isinstance(arg, str) else "", at or 0)
        for op, arg, at in pickletools.genops(data)
    ]
    ends = [at for _, _, at in operations[1:]] + [len(data)]
    for (name, argument, start), end in zip(operations, ends, strict=True):
        if name == "FRAME":
            continue
        if name == "GLOBAL" and argument.partition(" ")[0] in renames:
            module, _, attribute = argument.partition(" ")
            yield pickle.GLOBAL + f"{renames[module]}\n{attribute}\n".encode()
        elif name in _TEXT and argument in renames:
            yield _text(renames[argument])
        else:
            yield data[start:end]


def _text(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) < 256:
        return pickle.SHORT_BINUNICODE + bytes([len(encoded)]) + encoded
    return pickle.BINUNICODE + len(encoded).to_bytes(4, "little") + encoded
