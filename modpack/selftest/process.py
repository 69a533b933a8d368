"""A clean interpreter: started, talked with, and ended.

It is this Python again, isolated (``-I``), in an empty folder, with a cache of its own and a path
that is told to it. Parent and child talk through a connection of their own, in JSON: what
libraries print does not disturb it, and nothing is unpickled.

What the trial's interpreter must not see: everything that the package holds instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from modpack.core.graph import Location
from modpack.core.json_values import Json
from modpack.core.names import RUNTIME_ROOTS, is_stdlib, is_within, root_of
from modpack.core.names import normalised_distribution as normalised
from modpack.core.plan import Decision, MockTouch, Plan
from modpack.core.rules import Action
from modpack.core.selftest import UnfilledTable, touch_from_json
from modpack.discovery.distributions import DistributionIndex
from modpack.errors import ModpackError
from modpack.exporting.presets import always_installed
from modpack.selftest.compare import Difference, difference_from_json

_START = """
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    job = json.load(file)
sys.path[:] = job["path"]
from modpack.selftest.child import main
main(job, int(sys.argv[2]))
"""
_POLL_SECONDS = 0.5
_LOG_LINES = 15

Answer = Callable[[dict[str, Any]], dict[str, Json]]
"""Answers a question of the child's."""


@dataclass(frozen=True)
class Failure:
    """Why a run came to no output.

    Attributes:
        text: what went wrong, in one sentence.
        trace: where, innermost last, in the package's terms.
        is_timeout: whether it just took too long.
        is_end: whether the interpreter ended without a word.
    """

    text: str
    trace: tuple[str, ...] = ()
    is_timeout: bool = False
    is_end: bool = False


@dataclass(frozen=True)
class Verdict:
    """What came of one run in a clean interpreter.

    Attributes:
        failure: why it came to no output; None if it did.
        differences: where the outputs differ from the recorded ones, by the example's number.
        refused: what was looked for in vain because it is hidden, and by whom.
        has_skipped: whether a greater eagerness would have asked for more.
        operators: the operators that were declared from Python there.
        log: the end of what was written to stdout and stderr.
        seconds: how long it took.
        touches: what was done with mocked modules.
        unfilled: tables that name a class of the model here, and not there.
        imported: modules from outside the package that were imported, each with who did so first.
    """

    failure: Failure | None
    differences: tuple[tuple[int, Difference], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    operators: frozenset[str] = frozenset()
    has_skipped: bool = False
    log: str = ""
    seconds: float = 0.0
    touches: tuple[MockTouch, ...] = ()
    imported: tuple[tuple[str, str | None], ...] = ()
    unfilled: tuple[UnfilledTable, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the interpreter itself told what happened, and neither hung nor died."""
        return self.failure is None or not (self.failure.is_end or self.failure.is_timeout)

    def told_with(self, name: str, replacement: str) -> Verdict:
        """The same, with another name for the package's file in all texts."""
        if self.failure is None:
            return self
        text = self.failure.text.replace(name, replacement)
        trace = tuple(line.replace(name, replacement) for line in self.failure.trace)
        failure = replace(self.failure, text=text, trace=trace)
        return replace(self, failure=failure, log=self.log.replace(name, replacement))


def perform(job: dict[str, Json], answer: Answer, limit_seconds: float) -> Verdict:
    """Run a job in a clean interpreter of its own.

    Args:
        job: what to do; see :func:`modpack.selftest.child.main`. Without a ``tree`` the
            package's code goes to a folder that is removed afterwards.
        answer: asked by the child about what it misses.
        limit_seconds: when to give up.

    Raises:
        ModpackError: no interpreter can be started.
    """
    if not sys.executable:
        raise ModpackError(
            "there is no Python to try the package with: sys.executable is empty. "
            "Remedy: trial=False"
        )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="modpack-trial-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        outcome = _Run(job, place, limit_seconds).outcome(answer)
        return replace(outcome, log=_tail(place / "log"), seconds=time.monotonic() - started)


class _Run:
    """One child process, in a folder of its own."""

    def __init__(self, job: dict[str, Json], folder: Path, limit_seconds: float) -> None:
        self._folder = folder
        self._limit = limit_seconds
        self._deadline = time.monotonic() + limit_seconds
        (folder / "cwd").mkdir()
        job = {"tree": str(folder / "tree"), **job}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")

    def outcome(self, answer: Answer) -> Verdict:
        ours, theirs = Pipe()
        with ours, (self._folder / "log").open("wb") as log:
            with theirs:
                process = self._start(theirs, log)
            try:
                return self._converse(ours, process, answer)
            finally:
                process.kill()
                process.wait()

    def _start(self, connection: Connection, log: Any) -> subprocess.Popen[bytes]:
        optimised = [f"-{'O' * sys.flags.optimize}"] if sys.flags.optimize else []
        handle = connection.fileno()
        command = [sys.executable, "-I", *optimised, "-c", _START]
        return subprocess.Popen(
            [*command, str(self._folder / "job.json"), str(handle)],
            cwd=self._folder / "cwd",
            env={**os.environ, "MODPACK_CACHE": str(self._folder / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_inheriting(handle),
        )

    def _converse(
        self, connection: Connection, process: subprocess.Popen[bytes], answer: Answer
    ) -> Verdict:
        while True:
            message = self._received(connection, process)
            if isinstance(message, Failure):
                return Verdict(message)
            if message["kind"] == "verdict":
                return _understood(message)
            with contextlib.suppress(OSError):  # it ended meanwhile: the next question tells
                connection.send_bytes(json.dumps(answer(message)).encode("ascii"))

    def _received(
        self, connection: Connection, process: subprocess.Popen[bytes]
    ) -> dict[str, Any] | Failure:
        while not connection.poll(_POLL_SECONDS):
            if process.poll() is not None and not connection.poll(0):
                return Failure(_end_of(process), is_end=True)
            if time.monotonic() > self._deadline:
                text = f"it did not come to an end within {self._limit:.0f} seconds"
                return Failure(text, is_timeout=True)
        try:
            message: dict[str, Any] = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return Failure(_end_of(process), is_end=True)
        return message


def _inheriting(handle: int) -> dict[str, Any]:
    """How a child is given one handle, and no other."""
    if sys.platform == "win32":
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    return {"pass_fds": (handle,)}


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return "it stopped answering"
    if code < 0:
        known = {member.value: member.name for member in signal.Signals}
        hint = ". Was there enough memory?" if -code == 9 else ""
        return f"it was killed by {known.get(-code, f'signal {-code}')}{hint}"
    return f"it ended by itself with exit status {code}"


def _understood(message: dict[str, Any]) -> Verdict:
    failure = message["failure"]
    return Verdict(
        Failure(failure["text"], tuple(failure["trace"])) if failure is not None else None,
        tuple((number, difference_from_json(each)) for number, each in message["differences"]),
        tuple((name, by) for name, by in message["refused"]),
        frozenset(message["operators"]),
        bool(message["has_skipped"]),
        touches=tuple(map(touch_from_json, message["touches"])),
        imported=tuple((name, by) for name, by in message["imported"]),
        unfilled=tuple(UnfilledTable(*table) for table in message["unfilled"]),
    )


def _tail(file: Path) -> str:
    lines = file.read_bytes().decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-_LOG_LINES:])


@dataclass(frozen=True)
class Hidden:
    """What is hidden from everybody in an interpreter.

    Attributes:
        modules: module paths; what is below them is hidden too.
        distributions: normalised names of distributions, which :mod:`importlib.metadata` must
            not find.
        places: files and folders of this machine that must not be read.
    """

    modules: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """As a record; :func:`hidden_from_json` reads it back."""
        return {
            "modules": list(self.modules),
            "distributions": list(self.distributions),
            "places": list(self.places),
        }


def hidden_from_json(record: dict[str, Json]) -> Hidden:
    """Read back what :meth:`Hidden.to_json` made.

    Raises:
        KeyError, TypeError: it made something else.
    """

    def texts(key: str) -> tuple[str, ...]:
        listed = record[key]
        if not isinstance(listed, list):
            raise TypeError(f"{key} is no list")
        return tuple(map(str, listed))

    return Hidden(texts("modules"), texts("distributions"), texts("places"))


def hidden_from(plan: Plan, ownership: DistributionIndex, scripts: Sequence[str] = ()) -> Hidden:
    """What a plan takes along, as it must be hidden to see whether the package stands alone.

    A root of which something is extern has to be installed where the package is loaded; of
    such a root nothing is hidden. Neither is anything that comes with torch or modpack.

    Args:
        plan: what is taken along.
        ownership: knows what is installed here.
        scripts: files of scripts of which definitions are taken along.
    """
    staying = {root_of(d.module) for d in _of(plan, Action.EXTERN)}
    always = always_installed(ownership)
    interned = [d for d in _of(plan, Action.INTERN) if root_of(d.module) not in staying]
    providers = {d.module: ownership.distribution_of(d.module, d.location) for d in interned}
    hidden = [
        d
        for d in interned
        for provider in [providers[d.module]]
        if provider is None or normalised(provider.name) not in always
    ]
    names = {
        normalised(found.name) for d in hidden for found in [providers[d.module]] if found
    } - _of_externs(plan, ownership)
    roots = sorted({root_of(d.module) for d in hidden})
    places = {place for root in roots for place in _places(plan.decisions.get(root))}
    places |= {str(Path(file).absolute()) for file in scripts}
    return Hidden(tuple(roots), tuple(sorted(names)), tuple(sorted(places)))


def clean_path(plan: Plan, hidden: Hidden) -> list[str]:
    """``sys.path`` for the trial: this one, without what only serves hidden code.

    The working folder, the folder of the running script, and folders in which hidden modules
    were found are left out, unless something that the package takes from its surroundings is
    found in them too.
    """
    needed = {_folder_above(d.location) for d in _of(plan, Action.EXTERN) if d.location}
    needed |= {str(Path(__file__).parents[2]), *_installation()}
    unwanted = {str(Path.cwd()), *_script_folder(), *map(_parent, hidden.places)}
    entries = [str(Path(entry or Path.cwd()).absolute()) for entry in sys.path]
    return [entry for entry in entries if entry in needed or entry not in unwanted]


def _of(plan: Plan, action: Action) -> Iterator[Decision]:
    for decision in plan.decisions.values():
        root = root_of(decision.module)
        if decision.action is action and root not in RUNTIME_ROOTS:
            if action is Action.INTERN or not is_stdlib(root):
                yield decision


def _of_externs(plan: Plan, ownership: DistributionIndex) -> set[str]:
    found = (ownership.distribution_of(d.module, d.location) for d in _of(plan, Action.EXTERN))
    return {normalised(distribution.name) for distribution in found if distribution is not None}


def _places(decision: Decision | None) -> Iterator[str]:
    """The folder or file of a root, as far as it holds nothing else."""
    location = decision.location if decision is not None else None
    if location is not None and location.is_package:
        yield from (str(Path(folder).absolute()) for folder in location.search)
    elif location is not None and location.file is not None:
        yield str(Path(location.file).absolute())


def _folder_above(location: Location) -> str:
    """The entry of ``sys.path`` below which a module was found."""
    place = Path(location.file or next(iter(location.search), "."))
    steps = location.module.count(".") + (1 if location.is_package and location.file else 0)
    return str(place.absolute().parents[min(steps, len(place.absolute().parents) - 1)])


def _installation() -> Iterable[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    zipped = [entry for entry in sys.path if entry.endswith(".zip")]
    return [*map(sysconfig.get_path, names), *zipped, *_sites()]


def _sites() -> list[str]:
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    return [*site.getsitepackages(), *([user] if user else [])]


def _script_folder() -> list[str]:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return [str(Path(file).absolute().parent)] if file else []


def _parent(place: str) -> str:
    return str(Path(place).parent)


def is_hidden(module: str, hidden: Hidden) -> bool:
    """Whether a module must not be found.

    >>> is_hidden("shop.till", Hidden(("shop",))), is_hidden("shopping", Hidden(("shop",)))
    (True, False)
    """
    return any(is_within(module, name) for name in hidden.modules)
