"""Whether an archive can be written to a target, as far as one can tell without trying."""

from __future__ import annotations

import io
import os
import stat

from modpack.archive.otherfiles import other_url
from modpack.errors import TargetError

__all__ = ["is_text", "mode_of_target", "require_writable"]


def mode_of_target(target: str, path: str) -> int | None:
    """Permission bits of the file that is there, None if there is none.

    Args:
        target: as the user named it, for messages.
        path: where that leads.

    Raises:
        TargetError: nothing can be written there.
    """
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        reason = other_url(target, is_target=True) or f"the folder {folder} does not exist"
        raise TargetError(f"cannot write {target}: {reason}")
    try:
        found = os.stat(path)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise TargetError(f"cannot write {target}: {error.strerror}") from error
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise TargetError(f"cannot write {target}: it is a directory")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise TargetError(f"cannot write {target}: it is no regular file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise TargetError(f"cannot write {target}: no permission to write in the folder {folder}")
    return None if found is None else stat.S_IMODE(found.st_mode)


def is_text(buffer: object) -> bool:
    """Whether a file object takes text, and no bytes."""
    mode = getattr(buffer, "mode", None)
    opened_as_text = isinstance(mode, str) and "b" not in mode and hasattr(buffer, "encoding")
    return isinstance(buffer, io.TextIOBase) or opened_as_text


def require_writable(buffer: object) -> None:
    """Refuses a file object that says of itself that it cannot be written to.

    Raises:
        TargetError: it does.
    """
    writable = getattr(buffer, "writable", None)
    try:
        allowed = writable() if callable(writable) else True
    except ValueError as error:  # what io raises for a closed file
        raise TargetError(f"cannot write <buffer>: {error}") from error
    if not allowed:
        raise TargetError("cannot write <buffer>: it was not opened for writing")
