"""Names of the standard library that pickles may name: data for :mod:`modpack.core.knownnames`.

What is in :data:`CALLED` may be called with any arguments: it makes values and does nothing else,
or the scan looks at what it is called with. What is in :data:`HELD` may only be a part of an
object. Nothing here starts processes, touches files or the network, runs
texts as code, or leads to something that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modpack.core._knownheld import HELD

__all__ = ["CALLED", "HELD", "ORDINARY_METHODS", "STRANGE_MODULES"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PURE_OPERATORS = (
    "abs add and_ concat contains eq floordiv ge gt inv invert is_ is_not le lt mod mul ne neg not_"
    " pos rshift sub truediv truth xor"
)
_SIGNALS = (
    "Clamped ConversionSyntax DecimalException DivisionByZero DivisionImpossible DivisionUndefined"
    " FloatOperation Inexact InvalidContext InvalidOperation Overflow Rounded Subnormal Underflow"
)

CALLED: Final[Mapping[str, frozenset[str]]] = {
    "builtins": _names(
        "bool bytearray bytes complex dict enumerate filter float frozenset getattr int iter list"
        " map memoryview object property range reversed set slice staticmethod classmethod str"
        " super tuple type zip dict.items dict.keys dict.values object.__new__ abs ascii bin"
        " callable chr divmod hash hex id isinstance issubclass len oct ord round"
    ),
    "_codecs": _names("encode"),
    "_collections_abc": _names("dict_items dict_keys dict_values"),
    "_functools": _names("partial reduce"),
    "_io": _names("BytesIO StringIO"),
    "_csv": _names("Error"),
    "_operator": _names(f"attrgetter getitem itemgetter methodcaller or_ {_PURE_OPERATORS}"),
    "_queue": _names("Empty SimpleQueue"),
    "_random": _names("Random"),
    "_struct": _names("Struct"),
    "_weakref": _names("ReferenceType ref"),
    "argparse": _names("ArgumentError ArgumentTypeError Namespace"),
    "array": _names("_array_reconstructor array"),
    "asyncio.exceptions": _names("CancelledError InvalidStateError TimeoutError"),
    "binascii": _names("Error Incomplete"),
    "calendar": _names("Day IllegalMonthError Month"),
    "collections": _names(
        "ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque"
        " OrderedDict.fromkeys OrderedDict.items OrderedDict.keys OrderedDict.values"
    ),
    "concurrent.futures._base": _names("CancelledError InvalidStateError TimeoutError"),
    "configparser": _names(
        "ConfigParser DuplicateOptionError DuplicateSectionError Error InterpolationError"
        " NoOptionError NoSectionError ParsingError RawConfigParser SectionProxy"
    ),
    "contextlib": _names("nullcontext suppress"),
    "copyreg": _names("__newobj__ __newobj_ex__ _reconstructor"),
    "dataclasses": _names(
        "FrozenInstanceError KW_ONLY _HAS_DEFAULT_FACTORY_CLASS _KW_ONLY_TYPE _MISSING_TYPE"
    ),
    "datetime": _names("date datetime time timedelta timezone"),
    "_datetime": _names("date datetime time timedelta timezone"),
    "decimal": _names(f"Context Decimal DecimalTuple {_SIGNALS}"),
    "difflib": _names("Match"),
    "enum": _names("EnumCheck FlagBoundary _EnumDict auto"),
    "fractions": _names("Fraction"),
    "functools": _names("_unwrap_partial partial partialmethod reduce"),
    "graphlib": _names("CycleError"),
    "http": _names("HTTPMethod HTTPStatus"),
    "inspect": _names("BoundArguments Parameter Signature _ParameterKind"),
    "io": _names("BytesIO StringIO"),
    "ipaddress": _names(
        "IPv4Address IPv4Interface IPv4Network IPv6Address IPv6Interface IPv6Network"
    ),
    "itertools": _names(
        "accumulate chain chain.from_iterable combinations combinations_with_replacement compress"
        " count cycle dropwhile filterfalse groupby islice pairwise permutations product repeat"
        " starmap takewhile zip_longest"
    ),
    "json.decoder": _names("JSONDecodeError"),
    "logging": _names("Formatter LogRecord NullHandler PercentStyle StrFormatStyle getLogger"),
    "operator": _names(f"attrgetter getitem itemgetter methodcaller or_ {_PURE_OPERATORS}"),
    "pathlib": _names(
        "Path PosixPath PurePath PurePosixPath PureWindowsPath UnsupportedOperation WindowsPath"
    ),
    "pathlib._local": _names(
        "Path PosixPath PurePath PurePosixPath PureWindowsPath UnsupportedOperation WindowsPath"
    ),
    "queue": _names("Empty Full"),
    "random": _names("Random SystemRandom"),
    "re": _names("RegexFlag _compile compile error"),
    "signal": _names("Handlers Sigmasks Signals"),
    "socket": _names("AddressFamily SocketKind"),
    "ssl": _names("TLSVersion VerifyFlags VerifyMode"),
    "statistics": _names("NormalDist StatisticsError"),
    "string": _names("Formatter Template"),
    "struct": _names("error"),
    "textwrap": _names("TextWrapper"),
    "threading": _names("Barrier BrokenBarrierError BoundedSemaphore Condition Event Semaphore"),
    "time": _names("struct_time"),
    "types": _names("GenericAlias MethodType SimpleNamespace"),
    "typing": _names("ForwardRef NewType ParamSpec TypeVar"),
    "urllib.parse": _names(
        "DefragResult DefragResultBytes ParseResult ParseResultBytes SplitResult SplitResultBytes"
    ),
    "uuid": _names("SafeUUID UUID"),
    "weakref": _names("ReferenceType ref"),
    "zlib": _names("error"),
    "zoneinfo": _names("ZoneInfo._unpickle"),
    "zoneinfo._common": _names("ZoneInfoNotFoundError"),
}
"""By module: what may be called."""

STRANGE_MODULES: Final = frozenset(
    {"antigravity", "idlelib", "lib2to3", "this", "turtledemo", "__phello__", "_testcapi"}
    | {"_xxsubinterpreters", "_xxtestfuzz", "ensurepip", "venv", "pip", "test", "pty", "tty"}
)
"""Modules of the standard library that no object holds, or that do something when imported."""

ORDINARY_METHODS: Final = _names(
    "__abs__ __add__ __and__ __bool__ __call__ __contains__ __delitem__ __divmod__ __enter__ __eq__"
    " __exit__ __float__ __floordiv__ __ge__ __getitem__ __gt__ __hash__ __iadd__ __iand__"
    " __ifloordiv__ __ilshift__ __imatmul__ __imod__ __imul__ __index__ __init__ __int__ __invert__"
    " __ior__ __ipow__ __irshift__ __isub__ __iter__ __itruediv__ __ixor__ __le__ __len__"
    " __lshift__ __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __new__ __next__ __or__ __pos__"
    " __pow__ __radd__ __rand__ __repr__ __reversed__ __rfloordiv__ __rlshift__ __rmatmul__"
    " __rmod__ __rmul__ __ror__ __round__ __rpow__ __rrshift__ __rshift__ __rsub__ __rtruediv__"
    " __rxor__ __setitem__ __str__ __sub__ __truediv__ __xor__"
)
"""Methods with such names that lead to nothing but themselves."""
