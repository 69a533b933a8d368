"""Every error that modpack raises on purpose.

All of them derive from :class:`ModpackError` and carry their facts as fields, so that a
caller can act on them; the text is made from the fields, for people. An error that has a
natural counterpart among Python's own exceptions derives from that one too.
"""

from __future__ import annotations

__all__ = [
    "ArchiveError",
    "CacheError",
    "DisallowedModuleError",
    "ExternNotFoundError",
    "ModpackError",
    "ModpackWarning",
    "NamespaceConflictError",
    "NotAPackageError",
    "ObjMismatchError",
    "ObjNotFoundError",
    "PackageNotFoundError",
    "PicklingError",
    "RecordNotFoundError",
    "TargetError",
    "UnpicklingError",
    "UnsupportedVersionError",
]


class ModpackError(Exception):
    """The common base: catching it catches everything that modpack raises on purpose."""


class ModpackWarning(UserWarning):
    """Something in a plan or a package that will not stop the work but may hurt later."""


class ArchiveError(ModpackError):
    """A package file is not what a package file must be.

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


class PicklingError(ModpackError):
    """An object cannot be saved.

    Args:
        resource: the resource being saved, as ``package/resource``.
        reason: what pickle could not do.
        path: where the object hangs, from the saved object (``model.encoder.layers[3].attn``).
    """

    def __init__(self, resource: str, reason: str, path: str | None = None) -> None:
        self.resource = resource
        self.reason = reason
        self.path = path
        where = f" (at {path})" if path else ""
        super().__init__(f"cannot pickle {resource}{where}: {reason}")


class UnpicklingError(ModpackError):
    """A pickle in a package asks for something that is not there or not allowed.

    Args:
        resource: the resource being loaded, as ``package/resource``.
        reason: what is wrong.
    """

    def __init__(self, resource: str, reason: str) -> None:
        self.resource = resource
        self.reason = reason
        super().__init__(f"cannot load {resource}: {reason}")


class ObjNotFoundError(ModpackError):
    """An object cannot be found again under the name that it carries."""


class ObjMismatchError(ModpackError):
    """Another object was found under the name that an object carries."""


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
    """

    def __init__(self, source: str, module: str, requirement: str | None = None) -> None:
        self.source = source
        self.module = module
        self.requirement = requirement
        remedy = (
            f"pip install '{requirement}'" if requirement else f"install what provides {module}"
        )
        ModuleNotFoundError.__init__(
            self,
            f"{source} expects to find {module!r} where it is loaded (it was declared extern), "
            f"but it is not installed here. Remedy: {remedy}",
            name=module,
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


class TargetError(ModpackError):
    """The file or buffer that a package should be written to cannot be used."""
