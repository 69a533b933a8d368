"""Methods that do something harmless, whatever they belong to.

``methodcaller("write_text", ...)`` does nothing until somebody calls it with a path. Whoever reads
a pickle cannot know with what; so only these names are let through where the owner is unknown.
None of them is a function of a module of the standard library that does more than to compute.
"""

from __future__ import annotations

from typing import Final

from modpack.core._knowntensorfunctions import TENSOR_FUNCTIONS

__all__ = ["is_harmless_method"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OF_VALUES: Final = _names(
    "add append as_integer_ratio bit_length capitalize casefold center clear conjugate"
    " contiguous copy_ count cpu difference discard double endswith expand expand_as"
    " extend fill_ float from_bytes get half hex index insert int intersection is_integer"
    " isalnum isalpha isdigit islower isspace istitle isupper item items join keys ljust long"
    " lower lstrip masked_fill mul_ new_empty new_full new_ones new_tensor new_zeros nbytes"
    " numel partition permute requires_grad_ reverse rfind rindex rjust rpartition rsplit"
    " rstrip setdefault size split splitlines startswith strip sub_ swapcase title to to_bytes"
    " tobytes tolist train translate type_as union update upper values view view_as zfill"
    " zero_grad"
)


def is_harmless_method(name: str) -> bool:
    """Whether a method may be taken of a value of which little is known.

    >>> is_harmless_method("relu"), is_harmless_method("lower"), is_harmless_method("tofile")
    (True, True, False)
    """
    return name in TENSOR_FUNCTIONS or name in _OF_VALUES
