"""The clean interpreter of the self-test: start it, respond to its requests, and end it.

It runs the same Python, isolated (``-I``), in an empty folder, with its own cache and a given
``sys.path``, and without the modules and files that the package contains. Parent and child
communicate in JSON through a separate connection, so that printed output does not disturb it and
nothing is unpickled.

The child imports this module before it hides anything, so it must not import torch.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from modpack.core.call_signature import CallSignature
from modpack.core.codec import from_json, record_to_json
from modpack.core.observations import NO_OBSERVATIONS, Observations, UnfilledTable
from modpack.core.policy import TrustPolicy
from modpack.core.selftest import Difference, SelfTestCase, WaitingImports
from modpack.errors import ModpackError
from modpack.selftest.interpreters import ForkedInterpreter, start_interpreter
from modpack.selftest.object_rows import Row, StateDifference

VARIATION_SECONDS = 60.0
"""Time limit of the calls that find varying dimensions."""
_Interpreter: TypeAlias = "ForkedInterpreter | subprocess.Popen[bytes]"
_POLL_SECONDS = 0.5
_LOG_LINES = 15


class HiddenModules(NamedTuple):
    """Modules, distributions, and paths that are hidden from all code in an interpreter.

    Attributes:
        modules: Module paths. Their submodules are hidden too.
        distributions: Normalized names of distributions that :mod:`importlib.metadata` must not
            find.
        paths: Files and folders of this machine that must not be read.
    """

    modules: tuple[str, ...] = ()
    distributions: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


class ProbeLevel(str, Enum):
    """The resources that the child requests from its parent."""

    NOTHING = "nothing"
    """None: the package must work with its own contents."""
    USES = "uses"
    """Resources that are imported, opened, or looked up by name."""
    PROBES = "probes"
    """Also resources that are only tested for (``find_spec``, ``exists``), and folder contents."""


class Job(NamedTuple):
    """The task of a clean interpreter.

    Attributes:
        package: The package file.
        namespace: The namespace to load it in.
        cases: The objects to run, with their examples.
        hidden: Modules, distributions, and paths to hide.
        path: The value of ``sys.path``.
        probe_level: Which resources to request from the parent.
        operators: Schemas of operators to declare first.
        tables: Tables that name a class of the model in the parent.
        policy: The trust policy. None allows everything.
        call_signatures: Calls whose varying dimensions are wanted.
        objects: Package and resource of the objects to describe.
        modules: Names to describe by module; see :func:`.describe_modules`.
        in_new_interpreter: Whether no fork may run the job.
        device: The device for the examples. None for those of the saved tensors.
        lazy: Whether imports may wait; None for what the package records.
        trial: What a trial run of waiting imports depends on: ``loaded`` and ``companions``. None
            for other runs.
    """

    package: str
    namespace: str
    cases: tuple[SelfTestCase, ...]
    hidden: HiddenModules
    path: tuple[str, ...]
    probe_level: ProbeLevel = ProbeLevel.NOTHING
    operators: tuple[str, ...] = ()
    tables: tuple[UnfilledTable, ...] = ()
    policy: TrustPolicy | None = None
    call_signatures: tuple[CallSignature, ...] = ()
    objects: tuple[tuple[str, str], ...] = ()
    modules: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    in_new_interpreter: bool = False
    device: str | None = None
    lazy: bool | None = False
    trial: WaitingImports | None = None


ResourceKind: TypeAlias = Literal["module", "file", "folder", "metadata", "plugins"]


class ResourceRequest(NamedTuple):
    """A request for a missing resource.

    Attributes:
        kind: The kind of resource. For ``plugins``, ``name`` is a group of entry points.
        name: The name of the resource.
        by: The packaged module that needs it, if known.
        line: The line in that module.
    """

    kind: ResourceKind
    name: str
    by: str | None
    line: int | None


class ResolvedResources(NamedTuple):
    """The response to a request. Empty if the resource is not available.

    Attributes:
        files: Contents by record.
        externs: Modules that may be imported from outside the package.
        names: The contents of a folder. Names of folders end with ``/``.
    """

    files: Mapping[str, bytes] = MappingProxyType({})
    externs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


NO_RESOURCES = ResolvedResources()
Responder: TypeAlias = Callable[[ResourceRequest], ResolvedResources]


class Failure(NamedTuple):
    """The reason why a run produced no output.

    Attributes:
        text: The problem in one sentence.
        trace: The traceback, innermost last, with the package's records.
        is_timeout: Whether the run took too long.
        has_exited: Whether the interpreter exited without a report.
    """

    text: str
    trace: tuple[str, ...] = ()
    is_timeout: bool = False
    has_exited: bool = False


class WaitingNames(NamedTuple):
    """The result of a trial run in which imports could wait.

    Attributes:
        modules: The names that still waited after the examples, by loaded module.
        effects: Pairs of a module and another one whose import changes it, or that it reads as an
            attribute of a library. The first is empty for modules outside the package.
        problem: Why no import may wait; empty if some may.
        failed: The modules whose waiting imports have failed.
    """

    modules: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    effects: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    failed: tuple[str, ...] = ()


class VariedCalls(NamedTuple):
    """The result of calls with other sizes.

    Attributes:
        call_signatures: Those of the job, with varying dimensions.
        failures: Stated dimensions with which a call failed, each with the reason.
    """

    call_signatures: tuple[CallSignature, ...] = ()
    failures: tuple[str, ...] = ()


class RunResult(NamedTuple):
    """The result of one run in a clean interpreter.

    Attributes:
        failure: The reason why there is no output, or None.
        differences: Differences from the recorded outputs, with the number of the example.
        blocked: Hidden names that were looked for, each with the module that did so.
        operators: Operators that the child declared from Python.
        has_skipped_probes: Whether a higher probe level would have requested more.
        imported: Modules imported from outside the package, each with its first importer.
        observations: What the run showed, without ``distributions`` and ``warnings``.
        descriptions: The rows of each object to describe.
        needs_settings: Whether an output differs with torch's default settings.
        modules: The rows of the modules to describe.
        copy_failure: Why a loaded object cannot be copied or pickled; empty if all can.
        changed: Parts of loaded objects that differ from those of the live ones.
        varied: The result of calls with other sizes. Empty if they were not wanted or the
            interpreter exited.
        waiting: The result of a trial of waiting imports. Empty for other runs.
        log: The end of stdout and stderr.
        seconds: The duration in seconds.
    """

    failure: Failure | None
    differences: tuple[tuple[int, Difference], ...] = ()
    blocked: tuple[tuple[str, str], ...] = ()
    operators: tuple[str, ...] = ()
    has_skipped_probes: bool = False
    imported: tuple[tuple[str, str | None], ...] = ()
    observations: Observations = NO_OBSERVATIONS
    descriptions: tuple[tuple[Row, ...], ...] = ()
    needs_settings: bool = False
    modules: tuple[Row, ...] = ()
    copy_failure: str = ""
    changed: tuple[StateDifference, ...] = ()
    varied: VariedCalls = VariedCalls()
    waiting: WaitingNames = WaitingNames()
    log: str = ""
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the interpreter reported the outcome itself, without a timeout or a crash."""
        return self.failure is None or not (self.failure.has_exited or self.failure.is_timeout)

    @property
    def changed_attributes(self) -> list[StateDifference]:
        """The changed parts that do not make the loaded object another one."""
        return [each for each in self.changed if not each.is_error]

    def unexplained_differences(self, cases: Iterable[SelfTestCase]) -> list[Difference]:
        """Return the differences that the live model's own randomness does not explain."""
        known = {case.number: case for case in cases}
        return [each for number, each in self.differences if not known[number].explains(each)]

    def rename_package(self, name: str, replacement: str) -> RunResult:
        """Return a copy that calls the package file by another name in all texts."""
        if self.failure is None:
            return self
        text = self.failure.text.replace(name, replacement)
        trace = tuple(line.replace(name, replacement) for line in self.failure.trace)
        failure = self.failure._replace(text=text, trace=trace)
        return self._replace(failure=failure, log=self.log.replace(name, replacement))


def run_job(job: Job, respond: Responder, timeout: float) -> RunResult:
    """Run a job in a clean interpreter.

    Args:
        job: The job.
        respond: Function that handles the child's requests.
        timeout: Maximum duration in seconds.

    Raises:
        ModpackError: If no interpreter can be started.
    """
    if not sys.executable:
        raise ModpackError(
            "cannot run the self-test: sys.executable is empty",
            hint="Pass self_test=False (--no-self-test).",
        )
    started = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="modpack-self-test-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        (folder / "cwd").mkdir()
        document = record_to_json(job)
        (folder / "job.json").write_text(json.dumps(document), encoding="utf-8")
        result = _communicate(job, folder, respond, timeout)
        log = (folder / "log").read_bytes().decode("utf-8", "replace").strip().splitlines()
        seconds = time.monotonic() - started
        return result._replace(log="\n".join(log[-_LOG_LINES:]), seconds=seconds)


def _communicate(job: Job, folder: Path, respond: Responder, timeout: float) -> RunResult:
    """Start the child in the folder of its job, handle its requests, and return its result."""
    deadline = time.monotonic() + timeout
    ours, theirs = Pipe()
    with ours, (folder / "log").open("wb") as log:
        with theirs:
            # Closed here afterwards: while it is open, the child's exit does not end the
            # connection.
            process = start_interpreter(job, folder, ours, theirs.fileno(), log)
        try:
            while True:
                message = _receive(ours, process, deadline)
                if message is None:
                    text = f"the run did not finish within {timeout:.0f} seconds"
                    return RunResult(Failure(text, is_timeout=True))
                if isinstance(message, Failure):
                    return RunResult(message)
                if "result" in message:
                    result = from_json(RunResult, message["result"], "the result")
                    if job.call_signatures and result.failure is None:
                        return _add_variations(result, ours, process)
                    return result
                request = from_json(ResourceRequest, message["request"], "the request")
                response = json.dumps(record_to_json(respond(request))).encode("ascii")
                with contextlib.suppress(OSError):  # the next read reports that the child exited
                    ours.send_bytes(response)
        finally:
            process.kill()
            process.wait()


def _add_variations(result: RunResult, connection: Connection, process: _Interpreter) -> RunResult:
    """Return a result with that of the calls with other sizes, which the child sends after it.

    The calls that they need may crash the child or never return, which is not a failure.
    """
    message = _receive(connection, process, time.monotonic() + VARIATION_SECONDS)
    if message is None or isinstance(message, Failure):
        return result
    return result._replace(varied=from_json(VariedCalls, message["varied"], "the calls"))


def _receive(
    connection: Connection, process: _Interpreter, deadline: float
) -> dict[str, Any] | Failure | None:
    """Return the next message, or None after the deadline."""
    # A process that packaged code has forked may keep the connection open after the child's exit.
    while not connection.poll(_POLL_SECONDS):
        # Its last message may have arrived between the two checks.
        if process.poll() is not None and not connection.poll(0):
            return Failure(_describe_exit(process), has_exited=True)
        if time.monotonic() > deadline:
            return None
    try:
        message: dict[str, Any] = json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        return Failure(_describe_exit(process), has_exited=True)
    return message


def _describe_exit(process: _Interpreter) -> str:
    try:
        # The connection may end before the process does.
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return "the interpreter stopped responding"
    if code < 0:
        known = {member.value: member.name for member in signal.Signals}
        cause = ", which may mean that memory ran out" if -code == 9 else ""
        return f"the interpreter was killed by {known.get(-code, f'signal {-code}')}{cause}"
    return f"the interpreter exited with status {code}"
