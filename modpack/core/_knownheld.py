"""Names of the standard library that objects may hold: data for :mod:`modpack.core.knownnames`.

Their code may call them later; pickles may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["HELD"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


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
        "Ellipsis False None NotImplemented True all any dir format hasattr max min next pow print"
        " repr sorted sum object.__init__ object.__setattr__"
        " dict.__getitem__ dict.__setitem__ dict.__contains__ list.__getitem__"
    ),
    "_asyncio": _names("Future"),
    "_bisect": _names("bisect_left bisect_right insort_left insort_right"),
    "_blake2": _names("blake2b blake2s"),
    "_collections_abc": _names(_ABSTRACT),
    "_collections": _names("OrderedDict defaultdict deque"),
    "_contextvars": _names("ContextVar"),
    "_functools": _names("cmp_to_key"),
    "_csv": _names("QUOTE_ALL reader writer"),
    "_hashlib": _names(
        "compare_digest "
        + " ".join(f"openssl_{name}" for name in _HASHES.split() if not name.startswith("blake"))
    ),
    "_heapq": _names("heapify heappop heappush heappushpop heapreplace"),
    "_operator": _names(_ARITHMETIC),
    "_stat": _names("S_IMODE S_ISDIR S_ISLNK S_ISREG"),
    "_struct": _names("calcsize pack pack_into unpack unpack_from"),
    "_thread": _names("LockType RLock _local allocate_lock get_ident"),
    "_threading_local": _names("local"),
    "_warnings": _names("warn warn_explicit"),
    "_weakref": _names("CallableProxyType ProxyType"),
    "_weakrefset": _names("WeakSet"),
    "abc": _names("ABC ABCMeta abstractmethod"),
    "argparse": _names(
        "ArgumentParser HelpFormatter _AppendAction _AppendConstAction _ArgumentGroup _CountAction"
        " _ExtendAction _HelpAction _MutuallyExclusiveGroup _StoreAction _StoreConstAction"
        " _StoreFalseAction _StoreTrueAction _SubParsersAction _VersionAction"
    ),
    "asyncio.locks": _names("BoundedSemaphore Condition Event Lock Semaphore"),
    "asyncio.queues": _names("LifoQueue PriorityQueue Queue"),
    "asyncio.tasks": _names("gather sleep wait_for"),
    "base64": _names("b64decode b64encode urlsafe_b64decode urlsafe_b64encode"),
    "binascii": _names("a2b_base64 a2b_hex b2a_base64 b2a_hex crc32 hexlify unhexlify"),
    "bisect": _names("bisect bisect_left bisect_right insort insort_left insort_right"),
    "calendar": _names(
        "Calendar HTMLCalendar TextCalendar isleap leapdays monthrange timegm weekday"
    ),
    "cmath": _names(_COMPLEX_MATHEMATICS),
    "colorsys": _names("hls_to_rgb hsv_to_rgb rgb_to_hls rgb_to_hsv rgb_to_yiq yiq_to_rgb"),
    "collections": _names(
        "Counter.most_common Counter.update OrderedDict.get OrderedDict.items"
        " OrderedDict.move_to_end abc deque.append deque.appendleft deque.extend namedtuple"
    ),
    "collections.abc": _names(_ABSTRACT),
    "concurrent.futures": _names("Executor Future ThreadPoolExecutor"),
    "concurrent.futures.thread": _names("ThreadPoolExecutor"),
    "concurrent.futures._base": _names("Executor Future as_completed wait"),
    "configparser": _names(
        "BasicInterpolation ConverterMapping ExtendedInterpolation Interpolation"
        " ConfigParser.getboolean ConfigParser.getfloat ConfigParser.getint SectionProxy.get"
    ),
    "contextlib": _names(
        "AbstractContextManager ContextDecorator ExitStack _GeneratorContextManager closing"
        " contextmanager redirect_stderr redirect_stdout"
    ),
    "contextvars": _names("ContextVar"),
    "copy": _names("copy deepcopy"),
    "csv": _names("Dialect DictReader DictWriter excel excel_tab unix_dialect"),
    "dataclasses": _names(
        "Field InitVar MISSING _DataclassParams _FIELD _FIELD_CLASSVAR _FIELD_INITVAR asdict"
        " astuple field fields is_dataclass replace"
    ),
    "difflib": _names("Differ SequenceMatcher get_close_matches ndiff unified_diff"),
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
    "graphlib": _names("TopologicalSorter"),
    "hashlib": _names(_HASHES),
    "heapq": _names("heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest"),
    "hmac": _names("compare_digest digest"),
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
    "keyword": _names("iskeyword issoftkeyword"),
    "math": _names(_MATHEMATICS),
    "multiprocessing.context": _names("DefaultContext ForkContext ForkServerContext SpawnContext"),
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
    "posix": _names("cpu_count fspath getpid"),
    "posixpath": _names(_PATHS),
    "pprint": _names("PrettyPrinter pformat pprint"),
    "queue": _names("LifoQueue PriorityQueue Queue SimpleQueue"),
    "random": _names(
        f"{_DRAWING} " + " ".join(f"Random.{name} SystemRandom.{name}" for name in _DRAWING.split())
    ),
    "re": _names("Match Pattern escape findall finditer fullmatch match search split sub subn"),
    "reprlib": _names("Repr repr"),
    "secrets": _names("choice randbelow randbits token_bytes token_hex token_urlsafe"),
    "shlex": _names("join quote"),
    "statistics": _names(
        "fmean geometric_mean harmonic_mean mean median mode pstdev pvariance quantiles stdev"
        " variance"
    ),
    "string": _names("capwords"),
    "struct": _names("Struct calcsize pack unpack"),
    "sys": _names("getrecursionlimit getrefcount getsizeof intern"),
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
        " NoneType NotImplementedType TracebackType UnionType WrapperDescriptorType coroutine"
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
        " TypedDict Union Unpack ValuesView cast final get_args get_origin no_type_check overload"
        " runtime_checkable"
    ),
    "unicodedata": _names("category decomposition name normalize numeric"),
    "urllib.parse": _names(
        "parse_qs parse_qsl quote quote_plus unquote unquote_plus urlencode urljoin urlparse"
        " urlsplit urlunparse urlunsplit"
    ),
    "uuid": _names("uuid4 uuid5"),
    "warnings": _names("catch_warnings filterwarnings simplefilter warn warn_explicit"),
    "weakref": _names(
        "CallableProxyType KeyedRef ProxyType ReferenceType WeakKeyDictionary WeakMethod WeakSet"
        " WeakValueDictionary finalize proxy"
    ),
    "zlib": _names("adler32 compress crc32 decompress"),
    "zoneinfo": _names("ZoneInfo"),
}
"""By module: what may be a part of an object."""
