"""How commands fail: one clear message, a documented exit status, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from click.exceptions import Exit

from modpack.cli._console import forget_stdout, settle_stdout, write
from modpack.errors import ModpackError, TrialError

__all__ = ["ERROR", "FINDINGS", "INTERRUPTED", "failing_clearly", "needing_extra"]

FINDINGS = 1
"""The command did its work and found something wrong."""
ERROR = 2
"""The command could not do its work."""
INTERRUPTED = 130
"""Somebody pressed Ctrl-C, as shells count it."""


@contextmanager
def failing_clearly(as_json: bool) -> Iterator[None]:
    """Turn a user's mistake into a message and :data:`ERROR`.

    What is left to propagate with a traceback is a mistake of modpack's own.

    Args:
        as_json: whether to tell it as JSON on stdout instead of as text on stderr.
    """
    try:
        yield
    except (ModpackError, OSError, click.UsageError) as failure:
        if isinstance(failure, click.UsageError) and not as_json:
            raise
        _tell(failure, as_json)
        settle_stdout()
        is_finding = isinstance(failure, TrialError)
        raise Exit(FINDINGS if is_finding else ERROR) from failure
    except KeyboardInterrupt as failure:
        click.echo("interrupted", err=True)
        raise Exit(INTERRUPTED) from failure


@contextmanager
def needing_extra(extra: str, needs: str, modules: tuple[str, ...]) -> Iterator[None]:
    """Say which extra of modpack is missing, where an import fails for that.

    Args:
        extra: its name, which is the command's too.
        needs: the library, and from which version on.
        modules: the top-level modules that come with it.

    Raises:
        ModpackError: one of them is not installed.
    """
    try:
        yield
    except ImportError as failure:
        if (failure.name or "").partition(".")[0] not in modules:
            raise
        raise ModpackError(
            f"modpack {extra} needs {needs} or newer ({failure}). "
            f"Remedy: pip install 'modpack[{extra}]'"
        ) from failure


def _tell(failure: Exception, as_json: bool) -> None:
    message = _message(failure)
    trace = str(getattr(failure, "trace", ""))
    if as_json:
        from modpack.report.as_json import dumps, error_document

        more = {"traceback": trace} if trace else {}
        try:
            write(dumps(error_document(type(failure).__name__, message, **more)))
            return
        except OSError:  # nothing can be written to stdout: stderr may do
            forget_stdout()
    if trace:
        click.echo(trace, err=True, nl=False)
    from modpack.report.wording import printable

    click.secho("Error: ", err=True, fg="red", nl=False)
    click.echo(printable(message, keep="\n\t"), err=True)  # it may quote a hostile package


def _message(failure: Exception) -> str:
    if isinstance(failure, click.UsageError):
        return failure.format_message()
    if isinstance(failure, OSError) and not isinstance(failure, ModpackError):
        reason = failure.strerror or str(failure) or type(failure).__name__
        return f"{failure.filename}: {reason}" if failure.filename else reason
    return str(failure)
