"""Exceptions and warnings that modpack raises.

All exceptions derive from :class:`ModpackError` and carry their facts as attributes, so that
callers can act on them. The text is composed from the attributes: location, problem, fix. An
exception with a counterpart among Python's built-in exceptions derives from that one as well.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

__all__ = [
    "ArchiveError",
    "CacheError",
    "DataError",
    "DeviceNotFoundError",
    "DisallowedModuleError",
    "EnvironmentMismatchError",
    "EnvironmentMismatchWarning",
    "ExampleError",
    "ExternNotFoundError",
    "InputMismatchError",
    "IsolationError",
    "KeyFileError",
    "ModpackError",
    "ModpackWarning",
    "NamespaceConflictError",
    "NativeModuleError",
    "NotAPackageError",
    "ObjMismatchError",
    "ObjNotFoundError",
    "OperatorConflictError",
    "OperatorNotFoundError",
    "PackageNotFoundError",
    "PicklingError",
    "PlatformMismatchError",
    "PolicyError",
    "PolicyNotFoundError",
    "RecordNotFoundError",
    "ReopenError",
    "RepackedError",
    "SelfTestError",
    "SignatureError",
    "TargetError",
    "TrustError",
    "UnpicklingError",
    "UnsupportedVersionError",
    "UntrustedImportError",
]


class ModpackError(Exception):
    """Base class of every exception that modpack raises deliberately.

    Args:
        message: The problem, with its location.
        hint: How to fix it, in complete sentences. Empty if modpack knows no fix.

    Attributes:
        code: Identifier of the kind of error. The reference page of errors has a section for it.
        hint: See ``Args``. The text of the exception ends with it.

    >>> str(ModpackError("net.modpack: no key was given", hint="Pass --key."))
    'net.modpack: no key was given. Pass --key.'
    >>> ExternNotFoundError.code
    'extern-not-found'
    """

    code: ClassVar[str] = "modpack"
    hint: str = ""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        name = cls.__name__.removesuffix("Error")
        # Without a regular expression, which the first load of a process would compile.
        cls.code = "".join(f"-{c.lower()}" if c.isupper() else c for c in name).strip("_-")

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        self.hint = hint
        super().__init__(with_hint(message, hint))

    def __reduce__(self) -> tuple[object, ...]:
        # Most subclasses have other arguments than the text. Exceptions that a worker process
        # cannot send stop multiprocessing.Pool forever.
        contents = dict(vars(self))
        if isinstance(self, ImportError):
            contents.update(msg=self.msg, name=self.name, path=self.path)
        return _unpickle, (type(self), self.args, contents)


def _unpickle(
    kind: type[ModpackError], arguments: tuple[object, ...], contents: dict[str, object]
) -> ModpackError:
    """Create an exception from its text and attributes."""
    # Not kind.__new__, which is RuntimeError's for a kind that is both.
    base = OSError if issubclass(kind, OSError) else BaseException
    failure = base.__new__(kind)
    failure.args = arguments
    for name, value in contents.items():
        setattr(failure, name, value)
    return failure


def with_hint(message: str, hint: str) -> str:
    """Return a problem followed by its fix: on the same line, or below a message of several lines.

    >>> with_hint("net.modpack: the file is truncated", "Copy it again.")
    'net.modpack: the file is truncated. Copy it again.'
    """
    if not hint:
        return message
    if "\n" in message:
        return f"{message}\n{hint}"
    return f"{message} {hint}" if message.endswith((".", "?", "!", ":")) else f"{message}. {hint}"


_MAX_CHARACTERS = 500


def listed(names: Iterable[str], limit: int = 5, between: str = ", ") -> str:
    """Join the first names, cut if they are long, and count the others.

    No file decides how long a message is: use it for all names and texts from a file.

    >>> listed(["a", "b"], 2), listed(["a", "b", "c"], 2), listed("abc", 2, "; ")
    ('a, b', 'a, b and 1 more', 'a; b; and 1 more')
    """
    names = list(names)
    cut = (n if len(n) <= _MAX_CHARACTERS else f"{n[:_MAX_CHARACTERS]}..." for n in names[:limit])
    more = len(names) - limit
    before = " " if between == ", " else between
    return between.join(cut) + (f"{before}and {more} more" if more > 0 else "")


def tally(names: Iterable[str], limit: int = 5) -> str:
    """Join the most frequent names, each with its number.

    >>> tally(["MIT", "BSD", "MIT"])
    'MIT 2, BSD 1'
    """
    return listed((f"{name} {count}" for name, count in Counter(names).most_common()), limit)


class ModpackWarning(UserWarning):
    """A hazard in a plan or a package. modpack continues, but the package may fail later."""


class ArchiveError(ModpackError, RuntimeError):
    """A package file is invalid or damaged. Also a RuntimeError, which torch raises here.

    Args:
        path: The package, as the user named it.
        reason: The problem.
        record: The affected record, if the problem concerns a single one.
        hint: How to fix it.
    """

    def __init__(
        self, path: str, reason: str, record: str | None = None, *, hint: str = ""
    ) -> None:
        self.path = path
        self.reason = reason
        self.record = record
        location = f"{path}: record {record!r}" if record is not None else path
        super().__init__(f"{location}: {reason}", hint=hint)


class RepackedError(ArchiveError):
    """Another program rewrote the package file, so its digests can no longer be checked."""


class NotAPackageError(ArchiveError):
    """The file is not a zip archive, or is a zip archive that is not a package."""


class PackageNotFoundError(NotAPackageError, FileNotFoundError):
    """The package file does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnsupportedVersionError(ArchiveError):
    """The package uses a newer format than this version of modpack can read."""


class RecordNotFoundError(ArchiveError, FileNotFoundError):
    """The package does not contain the requested record.

    Args:
        path: The package.
        record: The requested record.
        similar: Existing records with similar names.
    """

    def __init__(self, path: str, record: str, similar: tuple[str, ...] = ()) -> None:
        self.similar = similar
        hint = f"Did you mean {', '.join(map(repr, similar))}?" if similar else ""
        super().__init__(path, "the package has no such record", record, hint=hint)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CacheError(ModpackError):
    """The cache folder cannot be used."""


class TargetError(ModpackError, RuntimeError):
    """A package cannot be written to a path or buffer. Also a RuntimeError, as torch raises."""


class PicklingError(ModpackError, pickle.PicklingError):
    """An object cannot be saved.

    Args:
        resource: The resource being saved, as ``package/resource``.
        problems: A location and a reason for everything that cannot be saved. A location is an
            attribute path from the saved object (``model.encoder.layers[3].attn``), or None if
            it is unknown. A reason includes its fix.

    Attributes:
        path: The location of the first problem.
        reason: The reason of the first problem.
    """

    def __init__(self, resource: str, problems: tuple[tuple[str | None, str], ...]) -> None:
        self.resource = resource
        self.problems = problems
        self.path, self.reason = problems[0]
        super().__init__(f"cannot save {resource}{_grouped(problems)}")


_MAX_LISTED_PATHS = 10


def _grouped(problems: tuple[tuple[str | None, str], ...]) -> str:
    """Return one problem on one line, or a list with one entry for each cause.

    Reasons that differ only in the names of objects have the same cause; the first one is shown.
    """
    by_cause: dict[str, list[tuple[str, str]]] = {}
    for path, reason in problems:
        cause = re.sub(r"<[^<>]*(<\w+>[^<>]*)*>|'[^']*'|[\w<>]+(\.[\w<>]+)+", "...", reason)
        by_cause.setdefault(cause, []).append((path or "", reason))
    lines = []
    for found in by_cause.values():
        reason = found[0][1]
        at = listed((p for p, r in found if p and r == reason), _MAX_LISTED_PATHS)
        others = [(p, r) for p, r in found if r != reason]
        subjects = [f"{r.partition('>')[0]}>" if r[:1] == "<" else "" for _, r in others]
        named = zip(subjects, (p for p, _ in others), strict=True)
        rest = [" at ".join(filter(None, each)) for each in named if any(each)]
        if rest:
            reason += f"\n  The same problem: {listed(rest, _MAX_LISTED_PATHS - 1)}."
        lines.append((f"at {at}" if at else "", reason))
    if len(lines) == 1:
        ((where, reason),) = lines
        return f" ({where}): {reason}" if where else f": {reason}"
    return f", for {len(lines)} reasons:" + "".join(
        f"\n* {where}{': ' if where else ''}{reason}" for where, reason in lines
    )


class UnpicklingError(ModpackError, pickle.UnpicklingError):
    """A pickle in a package refers to something that is missing or not allowed.

    Args:
        resource: The resource being loaded, as ``package/resource``.
        reason: The problem.
        hint: How to fix it.
    """

    def __init__(self, resource: str, reason: str, *, hint: str = "") -> None:
        self.resource = resource
        self.reason = reason
        super().__init__(f"cannot load {resource}: {reason}", hint=hint)


class DeviceNotFoundError(UnpicklingError, RuntimeError):
    """A tensor was saved on a device that this machine does not have.

    Also a RuntimeError, which ``torch.load`` raises here.
    """


class ObjNotFoundError(ModpackError):
    """No importer finds an object under the object's module and name."""


class ObjMismatchError(ModpackError):
    """An importer finds a different object under the object's module and name."""


MAX_LISTED_VERSIONS = 20
INSTALL_RECORDED = "Install the versions that modpack requirements lists."
_Difference = tuple[str, str, str]
"""A name, the recorded version, and the installed version."""


class _EnvironmentMismatch(Exception):
    """The text that the warning and the error have in common."""

    def __init__(
        self, path: str, differences: tuple[_Difference, ...], hint: str | None = None
    ) -> None:
        hint = hint or (
            "Load the package in an environment with the recorded versions, or export it again "
            "here."
        )
        super().__init__(with_hint(_mismatch_table(path, differences), hint))
        self.path = path
        self.differences = differences
        self.hint = hint


class EnvironmentMismatchWarning(_EnvironmentMismatch, ModpackWarning):
    """Installed versions or settings of torch differ from those at export.

    Args:
        path: The package.
        differences: Name, recorded value, and present value of each difference.
        hint: The command that installs the recorded versions, if pip can do that, and statements
            that set torch.
    """


class EnvironmentMismatchError(_EnvironmentMismatch, ModpackError):
    """The environment differs, and the caller passed ``on_mismatch="error"``.

    Nothing in the package was imported or unpickled.

    Args:
        path: The package.
        differences: Name, recorded value, and present value of each difference.
        hint: The command that installs the recorded versions, if pip can do that, and statements
            that set torch.
    """


def _mismatch_table(path: str, differences: tuple[_Difference, ...]) -> str:
    rows = [("", "recorded", "present"), *differences[:MAX_LISTED_VERSIONS]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    lines = [f"{path}: the environment differs from that at export:"]
    lines += ("  " + "  ".join(row).rstrip() for row in cells)
    more = len(differences) - MAX_LISTED_VERSIONS
    return "\n".join([*lines, *([f"  and {more} more"] if more > 0 else [])])


class PlatformMismatchError(ModpackError):
    """The package contains native extensions that cannot run on this platform.

    Args:
        path: The package.
        built_for: Platform, machine, Python ABI, and C library of the native extensions.
        present: The same for this interpreter.
    """

    def __init__(self, path: str, built_for: str, present: str) -> None:
        self.path = path
        self.built_for = built_for
        self.present = present
        super().__init__(
            f"{path}: the package has native extensions for {built_for}, but this is {present}",
            hint="Load the package on that platform, or export it again without intern_native.",
        )


class DisallowedModuleError(ModpackError, ImportError):
    """The package requires extern modules that ``module_allowed`` rejects.

    Args:
        path: The package.
        modules: Every rejected module.
    """

    def __init__(self, path: str, modules: tuple[str, ...]) -> None:
        self.modules = modules
        names = listed(map(repr, modules))
        super().__init__(f"{path}: module_allowed rejects these extern modules: {names}")
        self.path = path  # last, because an ImportError sets its own


class ExternNotFoundError(ModpackError, ModuleNotFoundError):
    """Packaged code imports an extern module that is not installed.

    Args:
        path: The package.
        module: The missing module.
        requirement: The distribution that provided it at export (``numpy==2.1.0``), if known.
        others: Other missing extern modules, each with its requirement.
    """

    def __init__(
        self,
        path: str,
        module: str,
        requirement: str | None = None,
        others: tuple[tuple[str, str | None], ...] = (),
    ) -> None:
        self.module = module
        self.requirement = requirement
        self.others = others
        self.hint = _how_to_install(module, requirement, others)
        names = listed(map(repr, (module, *(name for name, _ in others))))
        missing = f"modules {names} are" if others else f"module {names} is"
        text = f"{path}: extern {missing} not installed"
        ModuleNotFoundError.__init__(self, with_hint(text, self.hint), name=module, path=path)


def _how_to_install(
    module: str, requirement: str | None, others: tuple[tuple[str, str | None], ...]
) -> str:
    """Return one command that installs all known requirements."""
    known = dict.fromkeys(r for r in (requirement, *(r for _, r in others)) if r is not None)
    if len(known) > MAX_LISTED_VERSIONS:
        return INSTALL_RECORDED
    if not known:
        return f"Install the distribution that provides {module!r}."
    return f"Run: pip install {' '.join(repr(each) for each in known)}"


class OperatorNotFoundError(ModpackError):
    """The package uses torch operators that are not declared in this process.

    Args:
        path: The package.
        schemas: Their schemas, such as ``mylib::add(Tensor a, Tensor b) -> Tensor``.
    """

    def __init__(self, path: str, schemas: tuple[str, ...]) -> None:
        self.path = path
        self.schemas = schemas
        lines = listed(schemas, between="\n  ")
        super().__init__(
            f"{path}: these torch operators are not declared in this process:\n  {lines}",
            hint="Before loading, import the library that declares them, or declare each with "
            "torch.library.define(name, signature).",
        )


class OperatorConflictError(ModpackError, RuntimeError):
    """Packaged code defines torch operators that this process has already defined.

    A process can define an operator only once. Such a package therefore loads once per process,
    and not in a process that imports the original project. torch raises a RuntimeError.

    Args:
        path: The package.
        name: The operators' namespace (``mylib``), or one operator (``mylib::add``).
        location: The packaged line that defines it, if known.
        first: The earlier definition, if known.
    """

    def __init__(
        self, path: str, name: str, location: str | None = None, first: str | None = None
    ) -> None:
        self.path = path
        self.name = name
        self.location = location
        self.first = first
        what = f"the operator {name!r}" if "::" in name else f"the operators of {name!r}"
        where = f" at {location}" if location else ""
        earlier = first or "other code in this process"
        super().__init__(
            f"{path}: packaged code{where} defines {what}, which {earlier} has already defined",
            hint="A process can define an operator only once. Load the package once per process "
            "and reuse that model, or load it in a process that does not import the other code. "
            "Alternatively, declare the operators with torch.library.custom_op, which replaces "
            "an earlier definition, and export again.",
        )


class ReopenError(ModpackError, ModuleNotFoundError):
    """A process cannot reopen the package of an object that another process has sent.

    None of the package's code has run in this process.

    Args:
        namespace: The namespace that the object's class belongs to.
        reason: The problem.
        path: The package, if known.
        module: The packaged module that the object names, if known.
        hint: How to fix it.

    Attributes:
        digest: The first 32 hex digits of the package's digest.
    """

    def __init__(
        self,
        namespace: str,
        reason: str,
        path: str | None = None,
        module: str = "",
        *,
        hint: str = "",
    ) -> None:
        self.namespace = namespace
        self.digest = namespace.rpartition(".p")[2][:32]
        self.reason = reason
        self.hint = hint
        location = f"{path}: " if path is not None else ""
        named = f" for its module {module!r}" if module else ""
        text = f"{location}cannot reopen the package with digest {self.digest}{named}: {reason}"
        ModuleNotFoundError.__init__(self, with_hint(text, hint), name=namespace, path=path)


class NativeModuleError(ModpackError, ImportError):
    """A native extension of a package cannot be imported.

    Args:
        path: The package.
        module: The native extension.
        reason: The problem.
        hint: How to fix it.
    """

    def __init__(self, path: str, module: str, reason: str, *, hint: str = "") -> None:
        self.module = module
        self.reason = reason
        self.hint = hint
        text = f"{path}: native extension {module!r} {reason}"
        ImportError.__init__(self, with_hint(text, hint), name=module, path=path)


class NamespaceConflictError(ModpackError, ImportError):
    """A package cannot use the names of its modules, because this process uses them already.

    Args:
        path: The package.
        modules: The modules that are already imported from elsewhere.
    """

    def __init__(self, path: str, modules: tuple[str, ...]) -> None:
        self.modules = modules
        shown = listed(map(repr, modules))
        verb = "is" if len(modules) == 1 else "are"
        super().__init__(
            f"{path}: namespace='process' is impossible, because {shown} {verb} already imported "
            "from elsewhere",
            hint="Load the package before that import, or use namespace='private'.",
        )
        self.path = path  # last, because an ImportError sets its own


class ExampleError(ModpackError):
    """The live model fails on the example inputs.

    Args:
        resource: The model, as ``package/resource``.
        failure: The exception that it raised.
        location: The line of the model's code that raised it, if known.
    """

    def __init__(self, resource: str, failure: BaseException, location: str = "") -> None:
        self.resource = resource
        self.failure = failure
        self.location = location
        where = f"\n  at {location}" if location else ""
        super().__init__(
            f"{resource}: the model fails on the example inputs: "
            f"{type(failure).__name__}: {failure}{where}"
        )


class InputMismatchError(ModpackError, ValueError):
    """Values do not fit the call signature of a packaged object, or are not valid JSON.

    The object was not called.

    Args:
        problems: One sentence for each problem, with the name of the value.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class DataError(ModpackError, ValueError):
    """A file of inputs or outputs, or one of its rows, cannot be used.

    Args:
        path: The file, as the user named it.
        reason: The problem.
        row: Number of the row in the file, from 1, if the problem concerns a single one.
        line: Line of a text file, from 1, if known.
        hint: How to fix it.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        *,
        row: int | None = None,
        line: int | None = None,
        hint: str = "",
    ) -> None:
        self.path = path
        self.reason = reason
        self.row = row
        self.line = line
        location = path if line is None else f"{path}:{line}"
        place = location if row is None else f"{location}: row {row}"
        super().__init__(f"{place}: {reason}", hint=hint)


class IsolationError(ModpackError):
    """The virtual environment of ``--isolated`` cannot be created.

    Args:
        path: The package, as the user named it.
        reason: The problem.
        log: The end of the installer's output.
        hint: How to fix it.
    """

    def __init__(self, path: str, reason: str, log: str = "", *, hint: str = "") -> None:
        self.path = path
        self.reason = reason
        self.log = log
        lines = [f"{path}: {reason}", *(f"  {line}" for line in log.splitlines())]
        super().__init__("\n".join(lines), hint=hint)


class SelfTestError(ModpackError):
    """A package does not load in a clean interpreter, or its output differs there.

    Args:
        path: The package, as the user named it.
        reason: The problem.
        details: Lines with the traceback or the differing outputs.
        log: The end of what the self-test wrote to stdout and stderr.
        is_written: Whether the package was written despite the failure.
    """

    def __init__(
        self,
        path: str,
        reason: str,
        details: tuple[str, ...] = (),
        log: str = "",
        is_written: bool = False,
    ) -> None:
        self.path = path
        self.reason = reason
        self.details = details
        self.log = log
        lines = [f"{path}: the self-test failed: {reason}", *(f"  {line}" for line in details)]
        if log:
            lines += ["Output of the self-test:", *(f"  {line}" for line in log.splitlines())]
        hint = (
            ""
            if is_written
            else "No file was written. To write it anyway, pass self_test='warn', or skip the "
            "self-test with --no-self-test."
        )
        super().__init__("\n".join(lines), hint=hint)


class TrustError(ModpackError):
    """The trust policy does not allow something that a package requires.

    Args:
        path: The package.
        problems: Everything that is not allowed: a sentence for each, with its fix.
    """

    def __init__(self, path: str, problems: tuple[str, ...]) -> None:
        self.path = path
        self.problems = problems
        text = listed(problems, _MAX_LISTED_PROBLEMS, "\n* ")
        if len(problems) > 1:
            text = f"the trust policy rejects this package:\n* {text}"
        super().__init__(f"{path}: {text}")


_MAX_LISTED_PROBLEMS = 50


class UntrustedImportError(TrustError, ImportError):
    """Packaged code or a pickle imports a module that the trust policy does not allow.

    Args:
        path: The package.
        module: The module.
        problem: The problem as a sentence, with its fix.
    """

    path: str  # an ImportError's may be None

    def __init__(self, path: str, module: str, problem: str) -> None:
        super().__init__(path, (problem,))
        self.path, self.module, self.name = path, module, module


class PolicyError(ModpackError):
    """A trust policy file is invalid.

    Args:
        path: The file.
        problems: Every problem in it.
    """

    def __init__(self, path: str, problems: tuple[str, ...]) -> None:
        self.path = path
        self.problems = problems
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{path}: {problems[0]}" if len(problems) == 1 else f"{path}:{lines}")


class PolicyNotFoundError(PolicyError, FileNotFoundError):
    """The trust policy file does not exist."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SignatureError(ModpackError):
    """A signature is missing or invalid.

    Args:
        path: The package.
        reason: The problem.
        hint: How to fix it.
    """

    def __init__(self, path: str, reason: str, *, hint: str = "") -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}", hint=hint)


class KeyFileError(ModpackError):
    """A signing key cannot be used.

    Args:
        path: The key file, or the name of the key's owner.
        reason: The problem.
        hint: How to fix it.
    """

    def __init__(self, path: str, reason: str, *, hint: str = "") -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}", hint=hint)
