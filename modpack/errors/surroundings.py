"""What a package needs from where it is loaded, and does not find or cannot use there."""

from __future__ import annotations

from modpack.errors.base import ModpackError, ModpackWarning

__all__ = [
    "CompiledModuleError",
    "DisallowedModuleError",
    "EnvironmentMismatchError",
    "EnvironmentMismatchWarning",
    "ExternNotFoundError",
    "NamespaceConflictError",
    "OperatorConflictError",
    "OperatorNotFoundError",
    "PlatformMismatchError",
]


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
