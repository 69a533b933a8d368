"""Objects that cannot be saved, loaded or found again."""

from __future__ import annotations

import pickle

from modpack.errors.base import ModpackError

__all__ = [
    "DeviceNotFoundError",
    "ObjMismatchError",
    "ObjNotFoundError",
    "PicklingError",
    "UnpicklingError",
]


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


_MOST_PATHS_TOLD = 5


def _told(problems: tuple[tuple[str | None, str], ...]) -> str:
    """One problem in one line; several in a list, those that are alike together."""
    by_reason: dict[str, list[str]] = {}
    for path, reason in problems:
        by_reason.setdefault(reason, []).append(path or "")
    lines = []
    for reason, paths in by_reason.items():
        named = [path for path in paths if path][:_MOST_PATHS_TOLD]
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
