"""Which importer the modules of saved objects come from."""

from __future__ import annotations

from modpack.core.names import root_of
from modpack.discovery.walk import Walker
from modpack.errors import ObjMismatchError, ObjNotFoundError
from modpack.packing.sources import ImporterEnvironments
from modpack.resolution.importers import Importer, sys_importer

__all__ = ["ObjectHomes"]


class ObjectHomes:
    """Finds saved classes and functions in the importers, and remembers where they were.

    Args:
        environments: the exporter's importers.
    """

    def __init__(self, environments: ImporterEnvironments) -> None:
        self._environments = environments
        self._homes: dict[str, tuple[Importer, object]] = {}

    def find(self, obj: object, name: str) -> tuple[Importer, str, str]:
        """The first importer that has an object, with the module path and the name that it has.

        Args:
            obj: a class, a function, or whatever else has a name in a module.
            name: its qualified name.

        Raises:
            ObjNotFoundError: no importer knows it.
            ObjMismatchError: one knows something else by that name.
        """
        failures: list[ObjNotFoundError | ObjMismatchError] = []
        for importer in self._environments.importers:
            try:
                return (importer, *importer.get_name(obj, name))
            except (ObjNotFoundError, ObjMismatchError) as failure:
                failures.append(failure)
        mismatches = [f for f in failures if isinstance(f, ObjMismatchError)]
        raise (mismatches or failures)[0]

    def require_listed(self, importer: Importer, obj: object) -> None:
        """Refuse an object of a package that the exporter does not know.

        Raises:
            ObjNotFoundError: If its importer is none of the exporter's.
        """
        if not any(importer is each for each in self._environments.importers):
            raise ObjNotFoundError(
                f"{obj!r} was loaded from {importer!r}: name that one too, "
                "importer=[package, sys_importer]"
            )

    def remember(self, importer: Importer, module: str, obj: object) -> None:
        """Note that something of a module is saved.

        Args:
            importer: what has it.
            module: the module path that it has there.
            obj: what is saved.

        Raises:
            ObjMismatchError: something of the same library is saved from another importer.
        """
        if not self._environments.holds(importer, module):
            importer = sys_importer  # extern in its package: the host's, like everywhere else
        root = root_of(module)
        home, first = self._homes.setdefault(root, (importer, obj))
        if home is not importer:
            raise ObjMismatchError(
                f"{obj!r} comes from {importer!r}, but {first!r} comes from {home!r}: a package "
                f"holds one version of {root!r}. Save them into two packages"
            )

    def pin(self, walker: Walker) -> None:
        """Tell the walk from which environment the objects' own modules come.

        Raises:
            ObjMismatchError: modules of the same library came from another one already.
        """
        if len(self._environments.importers) > 1:
            for root, (importer, first) in self._homes.items():
                module = walker.pin(root, self._environments.of(importer))
                if module is not None:
                    raise ObjMismatchError(
                        f"{first!r} comes from {importer!r}, but the module {module!r} was taken "
                        f"from another importer: a package holds one version of {root!r}. Save "
                        "them into two packages"
                    )
