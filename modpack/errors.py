"""Every error that modpack raises on purpose.

All of them derive from :class:`ModpackError` and carry their facts as fields, so that a
caller can act on them; the text is made from the fields, for people. An error that has a
natural counterpart among Python's own exceptions derives from that one too.
"""

from __future__ import annotations

import pickle

__all__ = [
    "ArchiveError",
    "CacheError",
    "CompiledModuleError",
    "DeviceNotFoundError",
    "DisallowedModuleError",
    "EnvironmentMismatchError",
    "EnvironmentMismatchWarning",
    "ExampleError",
    "ExternNotFoundError",
    "KeyFileError",
    "ModpackError",
    "ModpackWarning",
    "NamespaceConflictError",
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
    "RepackedError",
    "SignatureError",
    "TargetError",
    "TrialError",
    "TrustError",
    "UnpicklingError",
    "UnsupportedVersionError",
    "UntrustedImportError",
]


class ModpackError(Exception):
    """The common base: catching it catches everything that modpack raises on purpose."""


class ModpackWarning(UserWarning):
    """Something in a plan or a package that will not stop the work but may hurt later."""


class ArchiveError(ModpackError, RuntimeError):
    """A package file is not what a package file must be; torch raises a RuntimeError.

    Args:
        source: the file, as the user named it.
        reason: what is wrong, in one sentence.
        record: the record it is about, if it is about one.
    """

    def __init__(self, source: str, reason: str, record: str | None = None) -> None:
        self.source = source
        self.reason = reason
        self.record = record
        where = f"{source}: record {record!r}" if record is not None else source
        super().__init__(f"{where}: {reason}")


class RepackedError(ArchiveError):
    """Another program packed the package again: contents may be the same, the file is not."""


class NotAPackageError(ArchiveError):
    """The file is no zip archive, or a zip archive that is no package."""


class PackageNotFoundError(NotAPackageError, FileNotFoundError):
    """There is no file where a package should be."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnsupportedVersionError(ArchiveError):
    """The package was written in a format that this modpack does not know."""


class RecordNotFoundError(ArchiveError, FileNotFoundError):
    """A record that was asked for is not in the package.

    Args:
        source: the package file.
        record: the record's name.
        similar: names that exist and look alike, offered to the user.
    """

    def __init__(self, source: str, record: str, similar: tuple[str, ...] = ()) -> None:
        self.similar = similar
        hint = f" Did you mean {', '.join(map(repr, similar))}?" if similar else ""
        super().__init__(source, f"there is no such record.{hint}", record)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CacheError(ModpackError):
    """The folder into which packages are unpacked cannot be used."""


class TargetError(ModpackError, RuntimeError):
    """The file or buffer for a package cannot be written; torch raises a RuntimeError."""


class PicklingError(ModpackError, pickle.PicklingError):
    """An object cannot be saved.

    Args:
        resource: the resource being saved, as ``package/resource``.
        reason: what pickle could not do.
        path: where the object hangs, from the saved object (``model.encoder.layers[3].attn``).
        problems: path and reason of everything that cannot be saved, that one included.
    """

    def __init__(
        self,
        resource: str,
        reason: str,
        path: str | None = None,
        problems: tuple[tuple[str | None, str], ...] = (),
    ) -> None:
        self.resource = resource
        self.reason = reason
        self.path = path
        self.problems = problems or ((path, reason),)
        super().__init__(f"cannot pickle {resource}{_told(self.problems)}")


_MAX_PATHS_TOLD = 5


def _told(problems: tuple[tuple[str | None, str], ...]) -> str:
    """One problem in one line; several in a list, those that are alike together."""
    by_reason: dict[str, list[str]] = {}
    for path, reason in problems:
        by_reason.setdefault(reason, []).append(path or "")
    lines = []
    for reason, paths in by_reason.items():
        named = [path for path in paths if path][:_MAX_PATHS_TOLD]
        more = len(paths) - len(named)
        where = ", ".join(named) + (f" and {more} more" if named and more else "")
        lines.append((f"at {where}" if where else "", reason))
    if len(lines) == 1:
        ((where, reason),) = lines
        return f" ({where}): {reason}" if where else f": {reason}"
    return f", for {len(lines)} reasons:" + "".join(
        f"\n* {where}{': ' if where else ''}{reason}" for where, reason in lines
    )


class UnpicklingError(ModpackError, pickle.UnpicklingError):
    """A pickle in a package asks for something that is not there or not allowed.

    Args:
        resource: the resource being loaded, as ``package/resource``.
        reason: what is wrong.
    """

    def __init__(self, resource: str, reason: str) -> None:
        self.resource = resource
        self.reason = reason
        super().__init__(f"cannot load {resource}: {reason}")


class DeviceNotFoundError(UnpicklingError, RuntimeError):
    """A tensor lies on a device that there is not; ``torch.load`` raises a RuntimeError."""


class ObjNotFoundError(ModpackError):
    """An object cannot be found again under the name that it carries."""


class ObjMismatchError(ModpackError):
    """Another object was found under the name that an object carries."""


_Difference = tuple[str, str, str]
"""What differs: its name, how it was where the package was made, how it is here."""


class _EnvironmentMismatch(Exception):
    """What the warning and the error say alike."""

    def __init__(
        self, source: str, differences: tuple[_Difference, ...], repair: str | None = None
    ) -> None:
        self.source = source
        self.differences = differences
        self.repair = repair
        super().__init__(_mismatch_text(source, differences, repair))


class EnvironmentMismatchWarning(_EnvironmentMismatch, ModpackWarning):
    """A package was made with other versions than those that are here.

    Args:
        source: the package file.
        differences: what differs; name, recorded, and here.
        repair: the command that repairs it, if pip can.
    """


class EnvironmentMismatchError(_EnvironmentMismatch, ModpackError):
    """A package was to be loaded with ``strict``, and was made with other versions than are here.

    Nothing of it was imported or unpickled.

    Args:
        source: the package file.
        differences: what differs; name, recorded, and here.
        repair: the command that repairs it, if pip can.
    """


def _mismatch_text(source: str, differences: tuple[_Difference, ...], repair: str | None) -> str:
    """What differs, as a table, and the remedy."""
    rows = [("", "recorded", "here"), *differences]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    lines = [f"{source} does not find here what it was made with:"]
    lines += ["  " + "  ".join(row).rstrip() for row in cells]
    otherwise = "load it in an environment like that, or export it again in this one"
    return "\n".join([*lines, f"Remedy: {repair or otherwise}"])


class PlatformMismatchError(ModpackError):
    """The package holds compiled modules that cannot run here.

    Args:
        source: the package file.
        built_for: what they were built for: platform, machine, Python's ABI, C library.
        present: the same of this interpreter.
    """

    def __init__(self, source: str, built_for: str, present: str) -> None:
        self.source = source
        self.built_for = built_for
        self.present = present
        super().__init__(
            f"{source} holds compiled modules for {built_for}, and this is {present}. Remedy: "
            "load it there, or make it again without intern_native"
        )


class DisallowedModuleError(ModpackError, ImportError):
    """The package needs an extern module that the loader does not allow.

    Args:
        source: the package file.
        modules: every module that was refused.
    """

    def __init__(self, source: str, modules: tuple[str, ...]) -> None:
        self.source = source
        self.modules = modules
        listed = ", ".join(repr(module) for module in modules)
        super().__init__(
            f"{source} needs {listed} from where it is loaded, "
            "but module_allowed does not allow that"
        )


class ExternNotFoundError(ModpackError, ModuleNotFoundError):
    """Packaged code imports an extern module that is not installed where it is loaded.

    Args:
        source: the package file.
        module: the module that was imported.
        requirement: the distribution that provided it at export (``numpy==2.1.0``), if known.
        others: what else was missing when the package was opened: each with its requirement.
    """

    def __init__(
        self,
        source: str,
        module: str,
        requirement: str | None = None,
        others: tuple[tuple[str, str | None], ...] = (),
    ) -> None:
        self.source = source
        self.module = module
        self.requirement = requirement
        self.others = others
        remedy = (
            f"pip install '{requirement}'" if requirement else f"install what provides {module}"
        )
        ModuleNotFoundError.__init__(
            self,
            f"{source} expects to find {module!r} where it is loaded (it was declared extern), "
            f"but it is not installed here. Remedy: {remedy}{_also_missing(requirement, others)}",
            name=module,
        )


def _also_missing(requirement: str | None, others: tuple[tuple[str, str | None], ...]) -> str:
    """What else is missing, and the command that brings all of it at once."""
    if not others:
        return ""
    named = ", ".join(repr(name) for name, _ in others)
    known = dict.fromkeys(r for r in (requirement, *(r for _, r in others)) if r is not None)
    at_once = " ".join(f"'{each}'" for each in known)
    command = f"; all at once: pip install {at_once}" if known else ""
    return f". What is missing as well: {named}{command}"


class OperatorNotFoundError(ModpackError):
    """The package needs operators that the program which made it had declared by itself.

    Args:
        source: the package file.
        schemas: such as ``mylib::add(Tensor a, Tensor b) -> Tensor``.
    """

    def __init__(self, source: str, schemas: tuple[str, ...]) -> None:
        self.source = source
        self.schemas = schemas
        listed = "".join(f"\n  {schema}" for schema in schemas)
        super().__init__(
            f"{source} needs operators that are not here:{listed}\nRemedy: import the library that "
            "has them, or declare each with torch.library.define(name, signature), before loading"
        )


class OperatorConflictError(ModpackError, RuntimeError):
    """Packaged code defines operators of torch that this process has already.

    torch lets a process define an operator once, so such a package loads once per process, and
    not next to the project that it was made from. torch raises a RuntimeError.

    Args:
        source: the package file.
        name: the operators' namespace (``mylib``), or one operator (``mylib::add``).
        place: where packaged code defines it, if that is known.
        first: where it was defined before, if that is known.
    """

    def __init__(
        self, source: str, name: str, place: str | None = None, first: str | None = None
    ) -> None:
        self.source = source
        self.name = name
        self.place = place
        self.first = first
        what = f"the operator {name!r}" if "::" in name else f"the operators of {name!r}"
        where = f" at {place}" if place else ""
        earlier = first or "other code in this process"
        super().__init__(
            f"{source}: packaged code{where} defines {what}, which {earlier} has defined already. "
            "A process can define an operator once only. Remedy: load the package once per "
            "process and use that model again, or load it in a process that does not import "
            "that code; or declare the operators with torch.library.custom_op, which "
            "replaces an earlier definition, and export again"
        )


class CompiledModuleError(ModpackError, ImportError):
    """A compiled module of a package cannot be loaded from where it was unpacked.

    Args:
        source: the package file.
        module: the module.
        reason: what is wrong, and the remedy.
    """

    def __init__(self, source: str, module: str, reason: str) -> None:
        self.source = source
        self.module = module
        self.reason = reason
        ImportError.__init__(
            self, f"{source}: the compiled module {module!r} {reason}", name=module
        )


class NamespaceConflictError(ModpackError, ImportError):
    """A package cannot be loaded under real names: those names are taken in this process.

    Args:
        source: the package file.
        modules: the modules that are already loaded from elsewhere.
    """

    def __init__(self, source: str, modules: tuple[str, ...]) -> None:
        self.source = source
        self.modules = modules
        shown = ", ".join(modules[:5]) + (", ..." if len(modules) > 5 else "")
        super().__init__(
            f"{source} cannot be loaded with namespace='process': {shown} "
            f"{'is' if len(modules) == 1 else 'are'} already loaded from elsewhere. "
            "Remedy: load it before they are imported, or with namespace='private'"
        )


class ExampleError(ModpackError):
    """The live model itself fails on the example inputs that were given.

    Args:
        resource: the model, as ``package/resource``.
        failure: what it raised.
        place: the line of the model's code that did, if it is known.
    """

    def __init__(self, resource: str, failure: BaseException, place: str = "") -> None:
        self.resource = resource
        self.failure = failure
        self.place = place
        where = f"\n  at {place}" if place else ""
        super().__init__(
            f"{resource}: the model does not run on the example inputs: "
            f"{type(failure).__name__}: {failure}{where}"
        )


_WRITE_ANYWAY = (
    "Nothing was written. trial='warn', or --no-trial on the command line, writes it all the same"
)


class TrialError(ModpackError):
    """A package does not load, or computes something else, where it was tried.

    Args:
        source: the package, as the user named it.
        reason: what is wrong, in one sentence.
        details: lines that show it: where it was raised, which outputs differ.
        log: the end of what the trial wrote to stdout and stderr.
        is_written: whether the package was written all the same.
    """

    def __init__(
        self,
        source: str,
        reason: str,
        details: tuple[str, ...] = (),
        log: str = "",
        is_written: bool = False,
    ) -> None:
        self.source = source
        self.reason = reason
        self.details = details
        self.log = log
        lines = [f"the trial run of {source} failed: {reason}", *(f"  {x}" for x in details)]
        if log:
            lines += ["It wrote:", *(f"  {line}" for line in log.splitlines())]
        if not is_written:
            lines.append(_WRITE_ANYWAY)
        super().__init__("\n".join(lines))


class TrustError(ModpackError):
    """A package asks for something that the loader's policy does not allow.

    Args:
        source: the package file.
        problems: everything that is not allowed, one sentence each, with its remedy.
    """

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        self.source = source
        self.problems = problems
        shown = problems[:_MAX_PROBLEMS_TOLD]
        more = len(problems) - len(shown)
        lines = [*shown, f"and {more} more"] if more else shown
        listed = f" {shown[0]}" if len(problems) == 1 else "".join(f"\n* {each}" for each in lines)
        super().__init__(f"{source}: the policy does not allow it:{listed}")


_MAX_PROBLEMS_TOLD = 50


class UntrustedImportError(TrustError, ImportError):
    """Code or a pickle of a package imports a module that the loader's policy does not allow.

    Args:
        source: the package file.
        module: the module.
        problem: the same in one sentence, with the remedy.
    """

    def __init__(self, source: str, module: str, problem: str) -> None:
        super().__init__(source, (problem,))
        self.module = self.name = module


class PolicyError(ModpackError):
    """The file of a policy cannot be used.

    Args:
        file: the file.
        problems: everything that is wrong with it.
    """

    def __init__(self, file: str, problems: tuple[str, ...]) -> None:
        self.file = file
        self.problems = problems
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{file}: {problems[0]}" if len(problems) == 1 else f"{file}:{listed}")


class PolicyNotFoundError(PolicyError, FileNotFoundError):
    """There is no file where a policy should be."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SignatureError(ModpackError):
    """A signature is missing, or does not hold.

    Args:
        source: the package file.
        reason: what is wrong, in one sentence.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"{source}: {reason}")


class KeyFileError(ModpackError):
    """A key for signatures cannot be used.

    Args:
        source: the file, or whose key it is.
        reason: what is wrong, in one sentence, and the remedy.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"{source}: {reason}")


for _name in __all__:
    globals()[_name].__module__ = __name__  # where users, tracebacks and pickles look for it
