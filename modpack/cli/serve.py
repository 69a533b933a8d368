"""``modpack serve``: answer HTTP requests with packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import click

from modpack.archive.base import suggest_file
from modpack.archive.reader import local_source
from modpack.cli._command import command, require_extra
from modpack.cli._options import PACKAGE, Size, load_options
from modpack.cli._running import read_trust
from modpack.core.names import file_name, url_of
from modpack.errors import ModpackError, PackageNotFoundError
from modpack.report.progress import working
from modpack.serving.settings import ServerSettings

_Function = TypeVar("_Function", bound=Callable[..., Any])

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DEFAULTS: Final = ServerSettings()
_MODULES: Final = ("uvicorn", "msgspec", "prometheus_client")


def _setting(
    name: str, metavar: str, kind: Any, text: str, default: object = None
) -> Callable[[_Function], _Function]:
    """Return the option of a server setting."""
    return click.option(
        f"--{name.replace('_', '-')}",
        metavar=metavar,
        type=kind,
        default=getattr(_DEFAULTS, name) if default is None else default,
        show_default=True,
        help=text,
    )


@command(
    "serve",
    epilog="Exit status: 0 after SIGTERM or Ctrl-C, 2 if a package cannot be loaded or the port "
    "cannot be opened.",
    has_json=False,
)
@click.argument("packages", metavar="PACKAGE...", nargs=-1, required=True, type=PACKAGE)
@_setting("host", "ADDRESS", click.STRING, "Listen on this address.")
@_setting("port", "PORT", click.IntRange(0, 65535), "Listen on this port; 0 chooses a free one.")
@_setting(
    "workers",
    "N",
    click.IntRange(1, 512),
    "Run each model in N processes, which share the weights.",
)
@click.option(
    "--threads",
    metavar="N",
    type=click.IntRange(min=1),
    help="Run torch with N threads in each worker.  [default: cores divided by workers]",
)
@click.option(
    "--device", metavar="DEVICE", help="Run the models on DEVICE.  [default: the recorded one]"
)
@_setting(
    "max_batch",
    "N",
    click.IntRange(1, 4096),
    "Compute up to N requests together, if the call signature says that rows are independent.",
)
@_setting(
    "max_wait_ms",
    "MS",
    click.FloatRange(0, 10_000),
    "Wait up to MS milliseconds for the requests of a batch. A lone client never waits.",
    _DEFAULTS.max_wait * 1000,
)
@_setting(
    "max_queue",
    "N",
    click.IntRange(1, 100_000),
    "Answer 429 if N requests already wait for the model.",
)
@_setting(
    "max_body",
    "SIZE",
    Size(least=1),
    "Answer 413 if a request's body is larger.",
    f"{_DEFAULTS.max_body >> 20}M",
)
@_setting(
    "timeout",
    "SECONDS",
    click.FloatRange(0.1, 86_400),
    "Answer 504 if a request takes more than SECONDS.",
)
@_setting(
    "shutdown_timeout",
    "SECONDS",
    click.FloatRange(1, 3600),
    "Finish accepted requests for up to SECONDS after SIGTERM.",
)
@load_options
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    help="Write log lines in this format to stderr.  [default: text at a terminal, else json]",
)
def serve_command(
    packages: tuple[str, ...],
    max_wait_ms: float,
    policy: str | None,
    keys: tuple[str, ...],
    log_format: Literal["json", "text"] | None,
    **settings: Any,
) -> None:
    """Answer HTTP requests with packages.

    Each PACKAGE is a file, a URL, or NAME=FILE. Without a name, the model has the name of its file.
    POST /predict calls the only model with plain JSON, /models/NAME/predict any model, and
    /v2/models/NAME/infer uses the Open Inference Protocol. GET / is a page for trying models.

    modpack checks the trust policy and the key before it opens the port. A replaced file takes
    effect without a restart, after the same checks. There is no authentication: anyone who can
    reach the port can use the models.

    This command executes the packages' code. Only serve packages that you trust.

    \b
    Examples:
      modpack serve model.modpack
      modpack serve model.modpack --workers 4 --max-batch 16
      modpack serve small=v1.modpack large=v2.modpack --key team.pub
    """
    if sys.platform == "win32":
        raise ModpackError("modpack serve requires Linux or macOS")
    named = _named(packages)
    trusted = read_trust(policy, keys)
    from importlib.util import find_spec

    libraries = "uvicorn 0.36, msgspec 0.19, and prometheus-client 0.20"
    # Before packages are loaded, and without the imports themselves, which come during the load.
    with require_extra("serve", libraries, _MODULES):
        for name in _MODULES:
            if find_spec(name) is None:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    chosen = ServerSettings(
        max_wait=max_wait_ms / 1000,
        log_format=log_format or ("text" if sys.stderr.isatty() else "json"),
        **settings,
    )
    from modpack.integrations.prometheus import PrometheusMetrics
    from modpack.serving.log import make_log
    from modpack.serving.server import ModelServer

    metrics = PrometheusMetrics()
    # The packages load while this process imports the HTTP server.
    server = ModelServer(named, chosen, trusted, metrics, make_log(chosen.log_format))
    try:
        from modpack.integrations.uvicorn import run
        from modpack.serving.asgi import ServerApp

        metrics.observe(server)
        run(server, ServerApp(server))
    finally:
        server.kill()


def _named(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the files by name of the model, after downloading URLs.

    Raises:
        click.UsageError: If a name is invalid or used twice.
        PackageNotFoundError: If a file does not exist.
    """
    named: dict[str, str] = {}
    for given in packages:
        name, is_named, path = given.partition("=")
        # File names may contain '=', so a file that exists is never split.
        if not is_named or Path(given).exists() or url_of(given) is not None:
            path = given
            stem = Path(file_name(given)).stem
            # The name becomes a part of a URL's path.
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")
        if not _NAME.fullmatch(name):
            raise click.UsageError(f"{name!r} is not a valid model name. Pass NAME={path}.")
        if name in named:
            raise click.UsageError(f"two packages have the name {name!r}. Pass OTHER_NAME={path}.")
        # The server watches a file: a new package at the URL takes effect after a restart.
        with working(f"Downloading {path}"):
            file = local_source(path)
        if not Path(file).exists():
            hint = suggest_file(path)
            raise PackageNotFoundError(path, "the file does not exist", hint=hint)
        named[name] = file
    return named
