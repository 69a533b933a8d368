"""Names of the standard library that pickles may name: data for :mod:`modpack.core.knownnames`.

What is in :data:`CALLED` may be called with any arguments: it makes values and does nothing else,
or the scan looks at what it is called with. What is in :data:`HELD` may be a part of an object,
to be called later by its code. Nothing here starts processes, touches files or the network, runs
texts as code, or leads to something that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["CALLED", "HELD", "ORDINARY_METHODS", "STRANGE_MODULES"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CALLED: Final[Mapping[str, frozenset[str]]] = {
    "builtins": _names(
        "bool bytearray bytes complex dict enumerate filter float frozenset getattr int iter list"
        " map memoryview object property range reversed set slice staticmethod classmethod str"
        " super tuple type zip dict.items dict.keys dict.values object.__new__"
    ),
    "_codecs": _names("encode"),
    "_collections_abc": _names("dict_items dict_keys dict_values"),
    "_functools": _names("partial reduce"),
    "_io": _names("BytesIO StringIO"),
    "_operator": _names("attrgetter getitem itemgetter methodcaller or_"),
    "_queue": _names("SimpleQueue"),
    "_random": _names("Random"),
    "_struct": _names("Struct"),
    "_weakref": _names("ReferenceType ref"),
    "argparse": _names("Namespace"),
    "array": _names("_array_reconstructor array"),
    "calendar": _names("Day IllegalMonthError Month"),
    "collections": _names(
        "ChainMap Counter OrderedDict UserDict UserList UserString defaultdict deque"
        " OrderedDict.fromkeys OrderedDict.items OrderedDict.keys OrderedDict.values"
    ),
    "configparser": _names("ConfigParser RawConfigParser SectionProxy"),
    "contextlib": _names("nullcontext suppress"),
    "copyreg": _names("__newobj__ __newobj_ex__ _reconstructor"),
    "dataclasses": _names("KW_ONLY _HAS_DEFAULT_FACTORY_CLASS _KW_ONLY_TYPE _MISSING_TYPE"),
    "datetime": _names("date datetime time timedelta timezone"),
    "_datetime": _names("date datetime time timedelta timezone"),
    "decimal": _names("Context Decimal DecimalTuple"),
    "difflib": _names("Match"),
    "enum": _names("EnumCheck FlagBoundary _EnumDict auto"),
    "fractions": _names("Fraction"),
    "functools": _names("_unwrap_partial partial partialmethod reduce"),
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
    "logging": _names("Formatter LogRecord NullHandler PercentStyle StrFormatStyle getLogger"),
    "operator": _names("attrgetter getitem itemgetter methodcaller or_"),
    "pathlib": _names(
        "Path PosixPath PurePath PurePosixPath PureWindowsPath UnsupportedOperation WindowsPath"
    ),
    "pathlib._local": _names(
        "Path PosixPath PurePath PurePosixPath PureWindowsPath UnsupportedOperation WindowsPath"
    ),
    "queue": _names("Empty Full"),
    "random": _names("Random SystemRandom"),
    "re": _names("RegexFlag _compile compile"),
    "signal": _names("Handlers Sigmasks Signals"),
    "socket": _names("AddressFamily SocketKind"),
    "ssl": _names("TLSVersion VerifyFlags VerifyMode"),
    "statistics": _names("NormalDist StatisticsError"),
    "string": _names("Formatter Template"),
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
    "zoneinfo": _names("ZoneInfo._unpickle"),
}
"""By module: what may be called."""

_ARITHMETIC = (
    "abs add and_ concat contains eq floordiv ge getitem gt iadd iand iconcat ifloordiv ilshift"
    " imatmul imod imul index indexOf inv invert ior ipow irshift is_ is_not isub itruediv ixor le"
    " length_hint lshift lt matmul mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor"
    " countOf is_none is_not_none setitem delitem"
)
_MATHEMATICS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist erf erfc"
    " exp exp2 expm1 fabs factorial floor fma fmod frexp fsum gamma gcd hypot inf isclose isfinite"
    " isinf isnan isqrt lcm ldexp lgamma log log10 log1p log2 modf nan nextafter perm pow prod"
    " radians remainder sin sinh sqrt sumprod tan tanh trunc ulp"
)
_COMPLEX_MATHEMATICS = (
    "acos acosh asin asinh atan atanh cos cosh exp inf infj isclose isfinite isinf isnan log log10"
    " nan nanj phase polar rect sin sinh sqrt tan tanh"
)
_PATHS = (
    "abspath basename commonpath commonprefix dirname exists expanduser expandvars getsize isabs"
    " isdir isfile join normcase normpath realpath relpath split splitdrive splitext"
)
_DRAWING = (
    "betavariate binomialvariate choice choices expovariate gammavariate gauss getrandbits getstate"
    " lognormvariate normalvariate paretovariate randbytes randint random randrange sample seed"
    " setstate shuffle triangular uniform vonmisesvariate weibullvariate"
)
_ABSTRACT = (
    "AsyncGenerator AsyncIterable AsyncIterator Awaitable Buffer ByteString Callable Collection"
    " Container Coroutine Generator Hashable ItemsView Iterable Iterator KeysView Mapping"
    " MappingView MutableMapping MutableSequence MutableSet Reversible Sequence Set Sized"
    " ValuesView"
)
_HASHES = "blake2b blake2s md5 sha1 sha224 sha256 sha384 sha3_224 sha3_256 sha3_384 sha3_512 sha512"

HELD: Final[Mapping[str, frozenset[str]]] = {
    "builtins": _names(
        "Ellipsis False None NotImplemented True abs all"
        " any ascii bin callable chr divmod format hasattr hash hex id isinstance"
        " issubclass len max min next oct ord pow print repr round sorted sum"
        " bytes.fromhex dict.fromkeys float.fromhex float.hex int.from_bytes int.to_bytes"
        " str.capitalize str.casefold str.format str.join str.lower str.lstrip str.maketrans"
        " str.replace str.rstrip str.split str.splitlines str.strip str.title str.upper"
        " dict.get dict.items dict.keys dict.pop dict.setdefault dict.update dict.values"
        " list.append list.clear list.copy list.count list.extend list.index list.insert list.pop"
        " list.remove list.reverse list.sort set.add set.discard set.union set.update tuple.count"
        " tuple.index object.__init__ object.__setattr__"
        " dict.__getitem__ dict.__setitem__ dict.__contains__ list.__getitem__"
    ),
    "_bisect": _names("bisect_left bisect_right insort_left insort_right"),
    "_collections_abc": _names(_ABSTRACT),
    "_collections": _names("OrderedDict defaultdict deque"),
    "_contextvars": _names("ContextVar"),
    "_functools": _names("cmp_to_key"),
    "_hashlib": _names(
        " ".join(f"openssl_{name}" for name in _HASHES.split() if not name.startswith("blake"))
    ),
    "_heapq": _names("heapify heappop heappush heappushpop heapreplace"),
    "_operator": _names(_ARITHMETIC),
    "_struct": _names("calcsize pack pack_into unpack unpack_from"),
    "_thread": _names("LockType RLock _local allocate_lock get_ident"),
    "_threading_local": _names("local"),
    "_weakref": _names("CallableProxyType ProxyType"),
    "_weakrefset": _names("WeakSet"),
    "abc": _names("ABC ABCMeta abstractmethod"),
    "base64": _names("b64decode b64encode urlsafe_b64decode urlsafe_b64encode"),
    "bisect": _names("bisect bisect_left bisect_right insort insort_left insort_right"),
    "cmath": _names(_COMPLEX_MATHEMATICS),
    "collections": _names(
        "Counter.most_common Counter.update OrderedDict.get OrderedDict.items"
        " OrderedDict.move_to_end abc deque.append deque.appendleft deque.extend namedtuple"
    ),
    "collections.abc": _names(_ABSTRACT),
    "concurrent.futures": _names("Executor Future ThreadPoolExecutor"),
    "concurrent.futures.thread": _names("ThreadPoolExecutor"),
    "concurrent.futures._base": _names("Executor Future"),
    "contextlib": _names(
        "AbstractContextManager ContextDecorator ExitStack _GeneratorContextManager closing"
        " contextmanager redirect_stderr redirect_stdout"
    ),
    "contextvars": _names("ContextVar"),
    "copy": _names("copy deepcopy"),
    "dataclasses": _names(
        "Field FrozenInstanceError InitVar _DataclassParams asdict astuple field fields"
        " is_dataclass replace"
    ),
    "enum": _names(
        "Enum EnumMeta EnumType Flag IntEnum IntFlag ReprEnum StrEnum member nonmember property"
        " unique"
    ),
    "fnmatch": _names("fnmatch fnmatchcase filter translate"),
    "functools": _names(
        "cache cached_property cmp_to_key lru_cache singledispatch singledispatchmethod"
        " total_ordering update_wrapper wraps"
    ),
    "genericpath": _names("commonprefix exists getsize isdir isfile"),
    "hashlib": _names(_HASHES),
    "heapq": _names("heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest"),
    "html": _names("escape unescape"),
    "inspect": _names("_empty Parameter.empty isclass isfunction ismethod signature"),
    "json": _names("dump dumps load loads"),
    "json.decoder": _names("JSONDecodeError JSONDecoder"),
    "json.encoder": _names("JSONEncoder"),
    "logging": _names(
        "Filter Filterer Handler Logger LoggerAdapter StreamHandler critical debug error exception"
        " info log warning Logger.critical Logger.debug Logger.error Logger.exception Logger.info"
        " Logger.log Logger.warning StreamHandler.emit StreamHandler.flush StreamHandler.handle"
    ),
    "math": _names(_MATHEMATICS),
    "ntpath": _names(_PATHS),
    "numbers": _names("Complex Integral Number Rational Real"),
    "operator": _names(_ARITHMETIC),
    "pathlib": _names(
        " ".join(
            f"{kind}.{name}"
            for kind in ("Path", "PosixPath", "PurePath", "PurePosixPath", "WindowsPath")
            for name in ("as_posix", "joinpath", "relative_to", "with_name", "with_suffix")
        )
    ),
    "posixpath": _names(_PATHS),
    "pprint": _names("PrettyPrinter pformat pprint"),
    "queue": _names("LifoQueue PriorityQueue Queue SimpleQueue"),
    "random": _names(
        f"{_DRAWING} " + " ".join(f"Random.{name} SystemRandom.{name}" for name in _DRAWING.split())
    ),
    "re": _names("Match Pattern escape findall finditer fullmatch match search split sub subn"),
    "reprlib": _names("Repr repr"),
    "statistics": _names(
        "fmean geometric_mean harmonic_mean mean median mode pstdev pvariance quantiles stdev"
        " variance"
    ),
    "string": _names("capwords"),
    "struct": _names("Struct calcsize pack unpack"),
    "textwrap": _names("dedent fill indent shorten wrap"),
    "threading": _names(
        "Lock RLock _RLock current_thread get_ident local Event.clear Event.is_set Event.set"
    ),
    "time": _names(
        "gmtime localtime monotonic monotonic_ns perf_counter perf_counter_ns process_time sleep"
        " strftime time time_ns"
    ),
    "traceback": _names("format_exc format_exception format_tb print_exc"),
    "types": _names(
        "BuiltinFunctionType BuiltinMethodType CellType CoroutineType DynamicClassAttribute"
        " EllipsisType FrameType FunctionType GeneratorType GetSetDescriptorType LambdaType"
        " MappingProxyType MemberDescriptorType MethodDescriptorType MethodWrapperType ModuleType"
        " NoneType NotImplementedType TracebackType UnionType WrapperDescriptorType"
    ),
    "typing": _names(
        "AbstractSet Annotated Any AnyStr AsyncGenerator AsyncIterable AsyncIterator Awaitable"
        " BinaryIO Callable ChainMap ClassVar Collection Concatenate Container ContextManager"
        " Coroutine Counter DefaultDict Deque Dict Final FrozenSet Generator Generic Hashable IO"
        " ItemsView Iterable Iterator KeysView List Literal LiteralString Mapping MappingView Match"
        " MutableMapping MutableSequence MutableSet NamedTuple Never NoReturn NotRequired Optional"
        " OrderedDict ParamSpecArgs ParamSpecKwargs Pattern Protocol Required Reversible Self"
        " Sequence Set Sized SupportsAbs SupportsBytes SupportsComplex SupportsFloat SupportsIndex"
        " SupportsInt SupportsRound Text TextIO Tuple Type TypeAlias TypeGuard TypeVarTuple"
        " TypedDict Union Unpack ValuesView cast"
    ),
    "unicodedata": _names("category decomposition name normalize numeric"),
    "urllib.parse": _names("quote quote_plus unquote unquote_plus urlencode urljoin urlparse"),
    "uuid": _names("uuid4 uuid5"),
    "warnings": _names("catch_warnings simplefilter warn warn_explicit"),
    "weakref": _names(
        "CallableProxyType KeyedRef ProxyType ReferenceType WeakKeyDictionary WeakMethod WeakSet"
        " WeakValueDictionary finalize proxy"
    ),
    "zlib": _names("adler32 compress crc32 decompress"),
    "zoneinfo": _names("ZoneInfo"),
}
"""By module: what may be a part of an object."""

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
