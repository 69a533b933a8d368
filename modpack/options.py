"""The options of loading, each declared once, and the functions that accept options.

An options class is a TypedDict. Each key is annotated with its type and an :class:`Option`, which
holds its default, its documentation, and a further check. Functions accept options as
``**options: Unpack[...]`` (PEP 692), which type checkers and editors expand.
:func:`takes_options` does the same for :func:`inspect.signature` and :func:`help`, and it checks
the options and fills in the defaults.

There is no ``from __future__ import annotations`` here, because the annotations are evaluated.
Types that are expensive to import are quoted.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ForwardRef,
    Literal,
    NamedTuple,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from modpack.core.json_values import require_type

if TYPE_CHECKING:
    from modpack.core.policy import TrustPolicy
    from modpack.hooks.describe import HookChoice

VerifyLevel = Literal["code", "full"]
OnMismatch = Literal["warn", "error", "ignore"]
NamespaceKind = Literal["auto", "private", "process"]

_Options = TypeVar("_Options")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_UNIONS = (Union, UnionType)
_NOUNS = {bool: "a bool", float: "a number", int: "an int", str: "a str", NoneType: "None"}
"""The types that :func:`require_value` checks, as error messages name them."""
_DOCUMENTED = "**options: "


class Option(NamedTuple):
    """The declaration of an option, apart from its name and type.

    Attributes:
        default: Default value.
        text: Documentation: a noun phrase, and more sentences if needed.
        check: Called with the value and the option's name; raises TypeError or ValueError.
    """

    default: object
    text: str
    check: Callable[[Any, str], object] | None = None


def takes_options(kind: type) -> Callable[[_Function], _Function]:
    """Check the options of a function, fill in defaults, and show them in its signature and help.

    Args:
        kind: The options class that annotates the function's ``**options``. In the docstring, the
            line of ``**options`` is replaced by a line for each option.

    Returns:
        A decorator. The function receives all options, with defaults for those not given.
    """
    declared: dict[str, tuple[Any, Option]] = {
        name: get_args(annotation) for name, annotation in inspect.get_annotations(kind).items()
    }
    defaults = {name: option.default for name, (_, option) in declared.items()}

    def decorate(function: _Function) -> _Function:
        own = inspect.signature(function)
        parameters = {p.name: p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD}
        title = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            for name, value in options.items():
                if name in declared:
                    hint, option = declared[name]
                    require_value(value, name, hint)
                    if option.check is not None:
                        option.check(value, name)
                elif name not in parameters:
                    raise _unexpected(title, name, (*parameters, *declared))
            return function(*arguments, **{**defaults, **options})

        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.default,
                annotation=_display(hint),
            )
            for name, (hint, option) in declared.items()
        ]
        wrapper.__signature__ = own.replace(  # type: ignore[attr-defined]
            parameters=[*parameters.values(), *shown]
        )
        wrapper.__doc__ = _document(function.__doc__ or f"Args:\n    {_DOCUMENTED}", declared)
        return wrapper  # type: ignore[return-value]

    return decorate


def require_value(value: object, name: str, hint: Any) -> None:
    """Check an argument against a type of choices (Literal) and of plain values, such as bool.

    Other types are not checked, such as quoted ones.

    Raises:
        TypeError: If the type is wrong.
        ValueError: If the value is not one of the choices.

    >>> require_value("hermtic", "preset", Literal["pinned", "hermetic"])
    Traceback (most recent call last):
    ValueError: preset must be 'pinned' or 'hermetic', not 'hermtic'. Did you mean 'hermetic'?
    """
    members = get_args(hint) if get_origin(hint) in _UNIONS else (hint,)
    literals = [member for member in members if get_origin(member) is Literal]
    choices = [choice for literal in literals for choice in get_args(literal)]
    plain = [member for member in members if member not in literals]
    if not all(member in _NOUNS for member in plain):
        return
    expected = _join([*map(repr, choices), *(_NOUNS[member] for member in plain)])
    if any(_is_instance(value, type(choice)) for choice in choices):
        if value not in choices:
            similar = _suggest(value, choices)
            raise ValueError(f"{name} must be {expected}, not {value!r}{similar}")
    elif not any(_is_instance(value, member) for member in plain):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}")


def select_options(kind: type[_Options], options: Mapping[str, Any]) -> _Options:
    """Return those of a function's options that an options class declares."""
    return {name: options[name] for name in inspect.get_annotations(kind)}  # type: ignore[return-value]


def _is_instance(value: object, kind: type) -> bool:
    """Return whether a value is an instance of a type, where a bool is not a number."""
    if isinstance(value, bool) and kind is not bool:
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _unexpected(function: str, name: str, known: Iterable[str]) -> TypeError:
    similar = _suggest(name, known)
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}{similar}")


def _suggest(value: object, known: Iterable[object]) -> str:
    import difflib  # for errors only

    names = {str(each): each for each in known}
    similar = difflib.get_close_matches(str(value), names, n=1)
    return f". Did you mean {names[similar[0]]!r}?" if similar else ""


def _join(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)}{',' if len(most) > 1 else ''} or {last}" if most else last


def _display(hint: Any) -> Any:
    """Return a type as signatures show it, with the text of a quoted type."""
    return hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint


def _document(text: str, declared: Mapping[str, tuple[Any, Option]]) -> str:
    """Replace the line of ``**options`` in a docstring by a line for each option."""
    lines = []
    for line in text.split("\n"):
        indent, marker, _ = line.partition(_DOCUMENTED)
        if marker:
            for name, (_, option) in declared.items():
                lines += _wrap(f"{name}: {option.text}", indent)
        else:
            lines.append(line)
    return "\n".join(lines)


def _wrap(entry: str, indent: str) -> list[str]:
    """Wrap an entry of ``Args``. textwrap takes 2 ms of a first load (benchmark row first-load)."""
    lines, line = [], indent + entry.partition(" ")[0]
    for word in entry.split(" ")[1:]:
        if len(line) + len(word) >= 96:
            lines.append(line)
            line = f"{indent}    {word}"
        else:
            line = f"{line} {word}"
    return [*lines, line]


def _require_policy(policy: object, argument: str) -> None:
    """Check that an argument is a trust policy or None.

    Raises:
        TypeError: If it is neither.
    """
    if policy is not None:
        from modpack.core.policy import TrustPolicy  # most loads have no policy

        expected = "a TrustPolicy or None; TrustPolicy.from_toml reads one from a file"
        require_type(policy, TrustPolicy, argument, expected)


class TrustOptions(TypedDict, total=False):
    """Options of everything that opens a package."""

    policy: Annotated[
        "TrustPolicy | None",
        Option(
            None,
            "Trust policy, which modpack checks before any code of the package runs, and again "
            "for each import and each name in a pickle. It is not a sandbox. None allows "
            "everything.",
            _require_policy,
        ),
    ]
    verify: Annotated[
        VerifyLevel,
        Option(
            "code",
            "Records to compare with their digests first: ``'code'`` for all records except "
            "tensors, which are mapped and not read; ``'full'`` for all records, which takes as "
            "long as reading them. The policy's level applies if it is stricter.",
        ),
    ]


class CheckOptions(TrustOptions, total=False):
    """Options of everything that runs a package's code."""

    on_mismatch: Annotated[
        OnMismatch,
        Option(
            "warn",
            "Reaction if Python, torch, the platform, or the distributions of extern modules "
            "differ from those at export. ``'warn'`` emits one EnvironmentMismatchWarning per "
            "package and ignores Python patch releases and local build labels; ``'error'`` "
            "rejects every difference; ``'ignore'`` does neither.",
        ),
    ]


class OpenOptions(CheckOptions, total=False):
    """Options of :class:`modpack.PackageImporter`."""

    namespace: Annotated[
        NamespaceKind,
        Option(
            "auto",
            "Names of the package's modules in ``sys.modules``. ``'private'`` puts them below a "
            "package named by the digest, so that packages never conflict; ``'process'`` uses "
            "their real names. ``'auto'`` uses the namespace in which the package passed its "
            "self-test, or ``'private'`` without a self-test.",
        ),
    ]
    lazy: Annotated[
        bool | None,
        Option(
            None,
            "Whether imports at module level of packaged code wait until a name is looked up, as "
            "in PEP 810. None lets imports wait if the package's self-test found that they can. A "
            "policy that restricts imports lets none wait. The environment variable "
            "``MODPACK_LAZY`` changes the default: ``0`` lets none wait, ``1`` all.",
        ),
    ]


class HookOptions(TypedDict, total=False):
    """Options of everything that registers a package's hooks."""

    hooks: Annotated[
        "HookChoice",
        Option(True, "Hooks to register: True, False, names, or a predicate over HookSpecs."),
    ]
    global_hooks: Annotated[
        bool, Option(False, "Whether to register the process-wide hooks that were captured.")
    ]


class LoadModelOptions(HookOptions, total=False):
    """Options of :meth:`modpack.PackageImporter.load_model`."""

    with_optimizer: Annotated[
        bool, Option(False, "Whether to also return the optimizer that was saved with the model.")
    ]


class ObjectOptions(TypedDict, total=False):
    """The choice of one saved object."""

    package: Annotated[
        str | None,
        Option(
            None,
            "Package of the saved object. Pass it together with ``resource``. The default is the "
            "main resource, or the only saved object.",
        ),
    ]
    resource: Annotated[str | None, Option(None, "Name of the saved object in ``package``.")]


class ResourceOptions(ObjectOptions, total=False):
    """Options of functions that load one object without an importer."""

    map_location: Annotated[Any, Option(None, "Device of the tensors; see :func:`torch.load`.")]


class ProgressOptions(TypedDict, total=False):
    """Options of functions that show their progress."""

    progress: Annotated[
        bool | None,
        Option(
            None,
            "Whether to show progress on stderr once the work takes more than a second. None shows "
            "it in a terminal and in a notebook.",
        ),
    ]


class LoadOptions(ResourceOptions, LoadModelOptions, OpenOptions, ProgressOptions, total=False):
    """Options of :func:`modpack.load`."""


class PredictorOptions(ObjectOptions, HookOptions, OpenOptions, total=False):
    """Options of :class:`modpack.running.predictor.Predictor`."""


class LoadWeightsOptions(ResourceOptions, TrustOptions, total=False):
    """Options of :func:`modpack.load_weights`."""


class SelfTestOptions(CheckOptions, total=False):
    """Options of :func:`modpack.self_test`."""

    timeout: Annotated[float, Option(600.0, "Time limit in seconds.")]
