"""The decorator of the commands: ``--json``, exit statuses, and errors."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from click.exceptions import Exit

from modpack.cli._options import FILE
from modpack.cli._output import discard_stdout, write_json
from modpack.errors import ModpackError, SelfTestError

_FINDINGS = 1
"""The command found a problem with the model or the package."""
_ERROR = 2
"""The command failed."""
_INTERRUPTED = 130
"""The user pressed Ctrl-C: 128 + SIGINT, as in shells."""


def command(
    name: str,
    *,
    epilog: str,
    cls: type[click.Command] = click.Command,
    group: click.Group | None = None,
    has_json: bool = True,
) -> Callable[[Callable[..., bool | None]], click.Command]:
    """Turn a function into a command whose help is the function's docstring.

    The exit status is 1 if the function returns True, which means that it found a problem.

    Args:
        name: The name of the command.
        epilog: The end of its help: the exit statuses.
        cls: The class of the command.
        group: The group that contains the command.
        has_json: Whether it has the option ``--json``, which the function receives as
            ``as_json``.
    """

    def decorate(function: Callable[..., bool | None]) -> click.Command:
        @functools.wraps(function)
        def callback(**given: object) -> None:
            # Parameters are checked inside, so that --json also covers these errors.
            with _report_errors(bool(given.get("as_json"))):
                for parameter in click.get_current_context().command.params:
                    if parameter.type is FILE:
                        _refuse_addresses(given[str(parameter.name)], parameter.name == "output")
                found = function(**given)
            raise Exit(_FINDINGS if found else 0)

        decorated = click.command(name, cls=cls, epilog=epilog)(callback)
        if has_json:
            option = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")
            decorated.params.append(option)
        if group is not None:
            group.add_command(decorated)
        return decorated

    return decorate


def _refuse_addresses(value: object, is_output: bool) -> None:
    """Refuse a path, ``NAME=PATH``, or one of several, that is an address such as a URL.

    Raises:
        ModpackError: If it is one.
    """
    for path in value if isinstance(value, tuple) else (value,):
        if isinstance(path, str) and re.match(r"([^=:/]*=)?[a-zA-Z][\w+.-]+:/{1,2}", path):
            if not (Path(path).parent if is_output else Path(path)).exists():
                hint = "Write a file and upload it." if is_output else "Download the file first."
                raise ModpackError(f"{path}: addresses are not supported yet", hint=hint)


@contextmanager
def require_extra(
    extra: str, library: str, modules: tuple[str, ...], *, name: str | None = None
) -> Iterator[None]:
    """Name the extra of modpack that is missing if an import fails.

    Args:
        extra: The name of the extra.
        library: The library and its lowest version.
        modules: The top-level modules of the library.
        name: The name of the command. By default, the name of the extra.

    Raises:
        ModpackError: If one of the modules is not installed.
    """
    try:
        yield
    except ImportError as failure:
        # Something else is missing, which the extra would not install.
        if (failure.name or "").partition(".")[0] not in modules:
            raise
        raise ModpackError(
            f"modpack {name or extra} requires {library} or newer ({failure})",
            hint=f"Run: pip install 'modpack[{extra}]'",
        ) from failure


@contextmanager
def _report_errors(as_json: bool) -> Iterator[None]:
    """Turn an expected error into a message and an exit status.

    Any other exception is a bug in modpack and keeps its traceback.

    Args:
        as_json: Whether to print the error as JSON to stdout instead of as text to stderr.
    """
    try:
        yield
    except (ModpackError, OSError, click.UsageError) as failure:
        if isinstance(failure, click.UsageError) and not as_json:
            raise
        # Expected errors have no traceback: it would only show modpack's own frames.
        _print_error(failure, as_json)
        try:  # The exit status must not depend on a failing flush at interpreter exit.
            sys.stdout.flush()
        except OSError:
            discard_stdout()
        raise Exit(_FINDINGS if isinstance(failure, SelfTestError) else _ERROR) from failure
    except KeyboardInterrupt as failure:
        click.echo("Interrupted.", err=True)
        raise Exit(_INTERRUPTED) from failure


def _print_error(failure: Exception, as_json: bool) -> None:
    from modpack.core.text import printable

    message = _message(failure)
    trace = str(getattr(failure, "trace", ""))
    if as_json:
        from modpack.report.json_output import ErrorDocument, ErrorFacts

        hint = getattr(failure, "hint", "")
        try:
            write_json(
                ErrorDocument(ErrorFacts(type(failure).__name__, message, hint, trace or None))
            )
            return
        except OSError:  # stdout cannot be written; try stderr
            discard_stdout()
    if trace:
        click.echo(trace, err=True, nl=False)
    click.secho("Error: ", err=True, fg="red", nl=False)
    click.echo(printable(message, keep="\n\t"), err=True)  # the message may quote a hostile package


def _message(failure: Exception) -> str:
    if isinstance(failure, click.UsageError):
        return failure.format_message()
    if isinstance(failure, OSError) and not isinstance(failure, ModpackError):
        reason = failure.strerror or str(failure) or type(failure).__name__
        return f"{failure.filename}: {reason}" if failure.filename else reason
    return str(failure)
