"""Objects that are nothing but their attributes: what pickle reduces them to, made faster.

``object.__reduce_ex__`` looks in each object for six methods that its class does not have. That
takes half of the time in which such an object is pickled.
"""

from __future__ import annotations

import copyreg
import operator
from types import GetSetDescriptorType
from typing import Any, Final

from modpack.pickling.reductions import has_own_reduction

__all__ = ["MADE_BY", "METHODS_OF_OBJECTS", "is_made_of_attributes"]

MADE_BY: Final = getattr(copyreg, "__newobj__")  # noqa: B009 - hidden from type checkers
"""What makes an object of its class alone, when it is loaded; pickle has an opcode for it."""
METHODS_OF_OBJECTS: Final = (b"__getstate__", b"__reduce_ex__")
"""Methods that pickle takes from an object itself if it has an attribute that is named like that.
Whether there is one is seen in the pickle, in a twentieth of the time of looking in each object."""
_CODE_OF_CLASSES: Final = ("__getattr__", "__getattribute__")


def is_made_of_attributes(first: Any, protocol: int) -> bool:
    """Whether pickle reduces all objects of a class to the class and their attributes.

    Unless they have no attributes, or one of :data:`METHODS_OF_OBJECTS`.

    Args:
        first: an object of the class.
        protocol: the pickle protocol, 2 or later.

    >>> class Point:
    ...     def __init__(self, x: int) -> None:
    ...         self.x = x
    >>> is_made_of_attributes(Point(1), 2), is_made_of_attributes(1.5, 2)
    (True, False)
    """
    kind = type(first)
    if has_own_reduction(kind) or any(map(_has_other_attributes, kind.__mro__[:-1])):
        return False
    attributes = getattr(first, "__dict__", None)
    if not attributes:
        return False
    reduced: Any = object.__reduce_ex__(first, protocol)
    made_by, arguments, *parts = reduced
    is_made = made_by is MADE_BY and len(arguments) == 1 and arguments[0] is kind
    return is_made and all(map(operator.is_, parts, (attributes, None, None)))


def _has_other_attributes(base: type) -> bool:
    """Whether a class has slots, which the first object need not use, or code for attributes."""
    defined = vars(base)
    own = defined.get("__dict__")
    if own is not None and not isinstance(own, GetSetDescriptorType):
        return True
    return bool(defined.get("__slots__")) or any(name in defined for name in _CODE_OF_CLASSES)
