"""The clean interpreter that a package is tried in: started, talked with, and ended.

It is this Python again, isolated (``-I``), in an empty folder, with a cache of its own, a path
that is told to it, and without everything that the package holds instead. Parent and child talk
through a connection of their own, in JSON: what libraries print does not disturb it, and nothing
is unpickled.

The child imports this module before it hides anything, so that it must not import torch.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from modpack.core.codec import from_json, record_to_json
from modpack.core.graph import Location
from modpack.core.names import RUNTIME_ROOTS, is_stdlib, root_of
from modpack.core.names import normalized_distribution as normalized
from modpack.core.plan import Decision, MockEvent, Plan
from modpack.core.policy import TrustPolicy
from modpack.core.rules import Action
from modpack.core.selftest import SelfTestCase, UnfilledTable
from modpack.errors import ModpackError
from modpack.exporting.presets import always_installed

if TYPE_CHECKING:
    from modpack.discovery.distributions import Distribution, DistributionIndex

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


class HiddenModules(NamedTuple):
    """What is hidden from everybody in an interpreter.

    Attributes:
        modules: module paths; what is below them is hidden too.
        distributions: normalized names of distributions, which :mod:`importlib.metadata` must
            not find.
        places: files and folders of this machine that must not be read.
    """

    modules: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


class ProbeLevel(str, Enum):
    """What the child asks its parent for."""

    NOTHING = "nothing"
    """The package must do with what it holds."""
    USES = "uses"
    """What is imported, opened, or looked up by name."""
    PROBES = "probes"
    """Also what is only tested for (``find_spec``, ``exists``), and what is in a folder."""


class Job(NamedTuple):
    """What a clean interpreter has to do.

    Attributes:
        package: the package file.
        namespace: in which namespace to load it.
        cases: which objects to run on which examples.
        hidden: what must not be found.
        path: ``sys.path``.
        tree: the folder for the package's code.
        eagerness: what to ask the parent for.
        operators: schemas of operators to declare first.
        tables: tables that name a class of the model in the parent.
        policy: what the package may ask for; None for anything.
    """

    package: str
    namespace: str
    cases: tuple[SelfTestCase, ...]
    hidden: HiddenModules
    path: tuple[str, ...]
    tree: str = ""
    eagerness: ProbeLevel = ProbeLevel.NOTHING
    operators: tuple[str, ...] = ()
    tables: tuple[UnfilledTable, ...] = ()
    policy: TrustPolicy | None = None


QuestionKind: TypeAlias = Literal["module", "file", "folder", "metadata", "plugins"]


class Question(NamedTuple):
    """What the child misses.

    Attributes:
        kind: what ``name`` is: of ``plugins``, a group of entry points.
        name: what is missing.
        by: the packaged module that asks for it, if known.
        line: of that module.
    """

    kind: QuestionKind
    name: str
    by: str | None
    line: int | None


class Answer(NamedTuple):
    """What a question gets.

    Attributes:
        files: contents by record.
        externs: modules that may be imported from outside the package.
        names: what a folder holds; the names of folders end with ``/``.
    """

    files: Mapping[str, bytes] = MappingProxyType({})
    externs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


Answering: TypeAlias = Callable[[Question], Answer]


class Difference(NamedTuple):
    """One place where two outputs differ.

    Attributes:
        path: the place: ``output[0].logits``.
        text: what was expected there, and what was found.
        is_structural: whether it is more than a value: another type, shape, dtype or length,
            which no randomness explains.
    """

    path: str
    text: str
    is_structural: bool

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Failure(NamedTuple):
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


class RunResult(NamedTuple):
    """What came of one run in a clean interpreter.

    Attributes:
        failure: why it came to no output; None if it did.
        differences: where the outputs differ from the recorded ones, by the example's number.
        refused: what was looked for in vain because it is hidden, and by whom.
        operators: the operators that were declared from Python there.
        has_skipped: whether a greater eagerness would have asked for more.
        touches: what was done with mocked modules.
        imported: modules from outside the package that were imported, each with who did so first.
        unfilled: tables that name a class of the model here, and not there.
        log: the end of what was written to stdout and stderr.
        seconds: how long it took.
    """

    failure: Failure | None
    differences: tuple[tuple[int, Difference], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    operators: tuple[str, ...] = ()
    has_skipped: bool = False
    touches: tuple[MockEvent, ...] = ()
    imported: tuple[tuple[str, str | None], ...] = ()
    unfilled: tuple[UnfilledTable, ...] = ()
    log: str = ""
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the interpreter itself told what happened, and neither hung nor died."""
        return self.failure is None or not (self.failure.is_end or self.failure.is_timeout)

    def unexplained(self, cases: Iterable[SelfTestCase]) -> list[Difference]:
        """The differences that the live model's own randomness does not explain."""
        unstable = {case.number: case.unstable for case in cases if not case.deterministic}
        return [
            each
            for number, each in self.differences
            if number not in unstable or (each.is_structural and each.path not in unstable[number])
        ]

    def told_with(self, name: str, replacement: str) -> RunResult:
        """The same, with another name for the package's file in all texts."""
        if self.failure is None:
            return self
        text = self.failure.text.replace(name, replacement)
        trace = tuple(line.replace(name, replacement) for line in self.failure.trace)
        failure = self.failure._replace(text=text, trace=trace)
        return self._replace(failure=failure, log=self.log.replace(name, replacement))


def perform(job: Job, answer: Answering, timeout: float) -> RunResult:
    """Run a job in a clean interpreter of its own.

    Args:
        job: what to do. Without a ``tree`` the package's code goes to a folder that is removed
            afterwards.
        answer: asked by the child about what it misses.
        timeout: when to give up.

    Raises:
        ModpackError: no interpreter can be started.
    """
    if not sys.executable:
        raise ModpackError(
            "there is no Python to try the package with: sys.executable is empty. "
            "Remedy: self_test=False"
        )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="modpack-trial-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        (place / "cwd").mkdir()
        document = record_to_json(job._replace(tree=job.tree or str(place / "tree")))
        (place / "job.json").write_text(json.dumps(document), encoding="utf-8")
        verdict = _outcome(place, answer, timeout)
        log = (place / "log").read_bytes().decode("utf-8", "replace").strip().splitlines()
        seconds = time.monotonic() - started
        return verdict._replace(log="\n".join(log[-_LOG_LINES:]), seconds=seconds)


def _outcome(folder: Path, answer: Answering, timeout: float) -> RunResult:
    """What the child process in a folder comes to, which holds its job."""
    deadline = time.monotonic() + timeout
    ours, theirs = Pipe()
    with ours, (folder / "log").open("wb") as log:
        with theirs:
            process = _started(folder, theirs.fileno(), log)
        try:
            while True:
                message = _received(ours, process, deadline)
                if message is None:
                    text = f"it did not come to an end within {timeout:.0f} seconds"
                    return RunResult(Failure(text, is_timeout=True))
                if isinstance(message, Failure):
                    return RunResult(message)
                if "verdict" in message:
                    return from_json(RunResult, message["verdict"], "the verdict")
                question = from_json(Question, message["question"], "the question")
                reply = json.dumps(record_to_json(answer(question))).encode("ascii")
                with contextlib.suppress(OSError):  # it ended meanwhile: the next question tells
                    ours.send_bytes(reply)
        finally:
            process.kill()
            process.wait()


def _started(folder: Path, handle: int, log: Any) -> subprocess.Popen[bytes]:
    optimized = [f"-{'O' * sys.flags.optimize}"] if sys.flags.optimize else []
    command = [sys.executable, "-I", *optimized, "-c", _START]
    return subprocess.Popen(
        [*command, str(folder / "job.json"), str(handle)],
        cwd=folder / "cwd",
        env={**os.environ, "MODPACK_CACHE_DIR": str(folder / "cache")},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        **_inheriting(handle),
    )


def _received(
    connection: Connection, process: subprocess.Popen[bytes], deadline: float
) -> dict[str, Any] | Failure | None:
    """The next message; None if none came in time."""
    while not connection.poll(_POLL_SECONDS):
        if process.poll() is not None and not connection.poll(0):
            return Failure(_end_of(process), is_end=True)
        if time.monotonic() > deadline:
            return None
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


def hidden_from(
    plan: Plan, ownership: DistributionIndex, scripts: Sequence[str] = ()
) -> HiddenModules:
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
    owners = {module: normalized(each.name) for module, each in providers.items() if each}
    hidden = [d for d in interned if owners.get(d.module) not in always]
    names = {owners[d.module] for d in hidden if d.module in owners}
    names.difference_update(extern_owners(plan, ownership))
    roots = sorted({root_of(d.module) for d in hidden})
    places = {place for root in roots for place in _places(plan.decisions.get(root))}
    places |= {str(Path(file).absolute()) for file in scripts}
    return HiddenModules(tuple(roots), tuple(sorted(names)), tuple(sorted(places)))


def clean_path(plan: Plan, hidden: HiddenModules) -> list[str]:
    """``sys.path`` for the self-test: this one, without what only serves hidden code.

    The working folder, the folder of the running script, and folders in which hidden modules
    were found are left out, unless something that the package takes from its surroundings is
    found in them too.
    """
    needed = {_folder_above(d.location) for d in _of(plan, Action.EXTERN) if d.location}
    needed |= {str(Path(__file__).parents[2]), *_installation()}
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    unwanted = {str(Path.cwd()), *(str(Path(place).parent) for place in hidden.places)}
    unwanted |= {str(Path(script).absolute().parent)} if script else set()
    entries = [str(Path(entry or Path.cwd()).absolute()) for entry in sys.path]
    return [entry for entry in entries if entry in needed or entry not in unwanted]


def _of(plan: Plan, action: Action) -> Iterator[Decision]:
    for decision in plan.decisions.values():
        root = root_of(decision.module)
        if decision.action is action and root not in RUNTIME_ROOTS:
            if action is Action.INTERN or not is_stdlib(root):
                yield decision


def extern_owners(plan: Plan, ownership: DistributionIndex) -> dict[str, Distribution]:
    """The distributions of a plan's extern modules, by their normalized names."""
    found = (ownership.distribution_of(d.module, d.location) for d in _of(plan, Action.EXTERN))
    return {normalized(owner.name): owner for owner in found if owner is not None}


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


def _installation() -> list[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    zipped = [entry for entry in sys.path if entry.endswith(".zip")]
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    sites = [*site.getsitepackages(), *([user] if user else [])]
    return [*map(sysconfig.get_path, names), *zipped, *sites]
