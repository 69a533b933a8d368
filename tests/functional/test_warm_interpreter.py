"""The interpreter that stays warm between self-tests and forks one for each run."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import modpack

NET = """
import json, multiprocessing.process, os, random, signal, sys, threading, time
import torch

THREADS = torch.get_num_threads()

def depth(frame):
    return 0 if frame is None else 1 + depth(frame.f_back)

class Net(torch.nn.Module):
    \"\"\"In the first call of a self-test, writes facts to a file, and runs code.\"\"\"

    calls = 0

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def forward(self, x):
        Net.calls += 1
        if os.environ.get("MODPACK_IN_SELF_TEST") == "1" and Net.calls == 1:
            facts = {
                "pid": os.getpid(),
                "parent": os.getppid(),
                "cwd": os.getcwd(),
                "cache": os.environ["MODPACK_CACHE_DIR"],
                "word": os.environ.get("WORD"),
                "random": random.__file__,
                "numbers": [random.random(), float(torch.rand(()))],
                "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[3:],
                "original": multiprocessing.process.ORIGINAL_DIR,
                "argv": sys.argv,
                "input": sys.stdin.read(),
                "signals": [str(signal.getsignal(each)) for each in range(1, 32)],
                "flags": str(sys.flags),
                "path": sys.path,
                "finders": [type(each).__name__ for each in sys.meta_path],
                "libraries": sorted(
                    name for name, module in sys.modules.items()
                    if "site-packages" in (getattr(module, "__file__", None) or "")
                ),
                "limit": [sys.getrecursionlimit(), depth(sys._getframe())],
                "threads": [THREADS, threading.active_count()],
                "mask": os.umask(0o22),
            }
            with open(os.path.join(self.folder, "facts"), "a") as file:
                file.write(json.dumps(facts) + "\\n")
            if os.path.exists(os.path.join(self.folder, "code")):
                with open(os.path.join(self.folder, "code")) as file:
                    exec(file.read())
        return x
"""
PARENT = """
import os, sys, time, torch
sys.path.insert(0, {project!r})
import modpack
from warmnet import Net

def save():
    modpack.save(Net({folder!r}), {path!r}, example_inputs=torch.ones(2))
"""


class Warm:
    """A folder with a package whose self-tests report what they find."""

    def __init__(self, folder: Path, project: Path) -> None:
        self.folder = folder
        self.project = project
        self.path = folder / "net.modpack"

    def save(self):
        from warmnet import Net

        modpack.save(Net(str(self.folder)), self.path, example_inputs=torch.ones(2))

    def facts(self):
        file = self.folder / "facts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def run(self, code=""):
        """Tell the next self-tests to run code."""
        (self.folder / "code").write_text(code)

    def observe(self, code=""):
        """Run a self-test, and return its result and what it found."""
        self.run(code)
        result = modpack.self_test(self.path)
        return result, self.facts()[-1]

    def parent(self, code, *options, folder=None):
        """Start a script that saves the package, with code that follows."""
        known = {"project": str(self.project), "folder": str(self.folder), "path": str(self.path)}
        script = self.folder / "parent.py"
        script.write_text(PARENT.format(**known) + code)
        return subprocess.Popen(
            [sys.executable, *options, str(script)],
            cwd=folder or self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def warm(tmp_path, project):
    return Warm(tmp_path, project({"warmnet.py": NET}))


def runs(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def count_descriptors(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.02)


def finish(process):
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def test_self_tests_of_a_process_are_forks_of_one_interpreter(warm):
    (warm.project / "__main__.py").write_text("")  # which no import looks for on the path
    warm.save()
    warm.observe()
    first, second = warm.facts()
    assert first["parent"] == second["parent"] != os.getpid()
    assert first["pid"] != second["pid"]
    assert first["numbers"] != second["numbers"]


def test_fork_has_the_state_of_a_new_interpreter(warm, monkeypatch):
    warm.save()
    monkeypatch.setenv("WORD", "wörd\udcff")
    monkeypatch.chdir(warm.folder)
    _, forked = warm.observe()
    monkeypatch.setenv("MODPACK_WORKERS", "0")  # keeps no interpreter warm
    _, fresh = warm.observe()
    gone = {"pid", "parent", "cwd", "original", "cache", "numbers", "descriptors"}
    assert {k: v for k, v in forked.items() if k not in gone} == {
        k: v for k, v in fresh.items() if k not in gone
    }
    assert forked["word"] == "wörd\udcff"
    for each in (forked, fresh):
        assert Path(each["cwd"]).name == "cwd"
        assert each["original"] == each["cwd"]
        assert Path(each["cache"]).parent == Path(each["cwd"]).parent
    assert len(forked["descriptors"]) == len(fresh["descriptors"])


def test_fork_has_the_options_of_the_process(warm):
    finish(warm.parent("save()\n", "-O"))
    found = warm.facts()[-1]
    assert "optimize=1" in found["flags"]
    assert "isolated=1" in found["flags"]


def test_new_interpreter_is_a_child_of_the_process(warm, monkeypatch):
    monkeypatch.setenv("MODPACK_WORKERS", "0")
    warm.save()
    assert warm.facts()[-1]["parent"] == os.getpid()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.kill(os.getpid(), 11)", "the interpreter was killed by SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL, which may mean that memory ran out"),
        ("os._exit(3)", "the interpreter exited with status 3"),
    ],
)
def test_end_of_a_fork_is_reported(warm, code, reason):
    warm.save()
    result, before = warm.observe(code)
    assert not result.passed
    assert reason in result.reason
    result, after = warm.observe()
    assert result.passed
    assert before["parent"] == after["parent"]


def test_output_of_a_fork_is_in_the_log(warm):
    warm.save()
    code = "print('to stdout'); os.system('echo to the descriptor'); raise ValueError"
    result, _ = warm.observe(code)
    assert result.log.splitlines() == ["to the descriptor", "to stdout"]


def test_endless_fork_is_killed_at_the_timeout(warm):
    warm.save()
    warm.run("while True: pass")
    result = modpack.self_test(warm.path, timeout=1.5)
    assert result.reason == "the run did not finish within 2 seconds"
    assert not runs(warm.facts()[-1]["pid"])
    assert warm.observe()[0].passed


def test_threads_run_forks_of_one_interpreter_at_once(warm):
    warm.save()
    (warm.folder / "facts").unlink()
    # Each fork waits until all three have started.
    warm.run("while open(os.path.join(self.folder, 'facts')).read().count('\\n') < 3: pass")
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: modpack.self_test(warm.path, timeout=60), range(3)))
    assert [each.passed for each in results] == [True] * 3
    assert len({each["parent"] for each in warm.facts()}) == 1
    assert len({len(each["descriptors"]) for each in warm.facts()}) == 1


def test_self_tests_leave_no_descriptors_and_no_processes(warm):
    warm.save()
    _, found = warm.observe()
    server = found["parent"]
    gc.collect()
    before = [count_descriptors(pid) for pid in (os.getpid(), server)]
    for _ in range(50):
        _, found = warm.observe()
    gc.collect()
    assert found["parent"] == server
    assert [count_descriptors(pid) for pid in (os.getpid(), server)] == before
    assert not any(Path(f"/proc/{each['pid']}").exists() for each in warm.facts())


def test_killed_interpreter_is_replaced(warm):
    warm.save()
    _, before = warm.observe()
    os.kill(before["parent"], signal.SIGKILL)
    wait_until(lambda: not runs(before["parent"]))
    result, after = warm.observe()
    assert result.passed
    assert after["parent"] not in (before["parent"], os.getpid())


def test_interpreter_killed_during_a_run_is_reported_and_ends_the_fork(warm):
    warm.save()
    result, found = warm.observe("os.kill(os.getppid(), 9); time.sleep(600)")
    assert "killed by SIGKILL" in result.reason
    wait_until(lambda: not runs(found["pid"]))
    assert warm.observe()[0].passed


def test_changed_number_of_threads_starts_another_interpreter(warm, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    warm.save()
    _, before = warm.observe()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _, after = warm.observe()
    assert after["parent"] not in (before["parent"], os.getpid())
    assert after["threads"][0] == 1
    assert not Path(f"/proc/{before['parent']}").exists()


def test_interpreter_in_use_is_not_replaced(warm, monkeypatch):
    warm.save()
    warm.run("while not os.path.exists(os.path.join(self.folder, 'go')): pass")
    (warm.folder / "facts").unlink()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(modpack.self_test, warm.path)
        wait_until(warm.facts)
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        result, fresh = warm.observe()
        (warm.folder / "go").touch()
        assert running.result().passed
    assert result.passed
    assert fresh["parent"] == os.getpid()


def test_module_that_replaces_one_of_torchs_is_imported(warm, project, tmp_path):
    """A path that would make torch import something else needs a new interpreter."""
    warm.save()
    project({"typing_extensions.py": "raise ImportError('the other file')"})
    result, _ = warm.observe()
    assert "the other file" in result.log


def test_hidden_module_that_torch_imports_is_hidden_from_torch_too(warm):
    from modpack.selftest.process import HiddenModules, Job, ResolvedResources, run_job

    def run(*hidden):
        path = tuple(map(os.path.abspath, sys.path))
        job = Job(str(warm.path), "private", cases, HiddenModules(hidden), path)
        failure = run_job(job, lambda _: ResolvedResources(), 100).failure
        return failure and failure.text, warm.facts()[-1]["parent"]

    warm.save()
    cases = warm.observe()[0].recorded.cases
    warm.run("torch.ones(1).numpy()")
    passed, first = run()
    failed, second = run("numpy")
    failed_again, third = run("numpy", "shop")
    passed_again, fourth = run("shop")
    assert passed is passed_again is None
    assert "Numpy is not available" in failed
    assert failed_again == failed
    assert second == third
    assert len({first, second, fourth, os.getpid()}) == 4


def test_files_of_the_current_and_the_scripts_folder_are_not_imported(warm):
    code = (
        "os.mkdir('current'); os.chdir('current'); sys.path.insert(0, '')\n"
        "for name in ('random.py', '../random.py'):\n"
        "    with open(name, 'w') as file:\n"
        "        file.write('raise SystemError')\n"
        "save(); print(os.getpid())\n"
    )
    pid = int(finish(warm.parent(code)))
    assert [each["parent"] != pid for each in warm.facts()] == [True]


@pytest.mark.parametrize("end", ["", "os._exit(0)", "os.kill(os.getpid(), 9)", "1 / 0"])
def test_interpreter_ends_with_its_parent(warm, end):
    process = warm.parent(f"save()\n{end}\n")
    process.communicate(timeout=120)
    server = warm.facts()[-1]["parent"]
    assert server != process.pid
    if end in ("", "1 / 0"):
        assert not Path(f"/proc/{server}").exists()
    wait_until(lambda: not runs(server))


def test_interpreter_of_killed_parent_does_not_import_torch(warm):
    code = """
        import signal
        from pathlib import Path
        from modpack.selftest import interpreters
        interpreters.prestart()
        (child,) = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        os.kill(int(child), signal.SIGSTOP)
        print(child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = int(warm.parent(textwrap.dedent(code)).communicate(timeout=120)[0])
    os.kill(child, signal.SIGCONT)
    while runs(child):
        with contextlib.suppress(OSError):
            assert "libtorch" not in Path(f"/proc/{child}/maps").read_text()
        time.sleep(0.01)


def test_running_fork_ends_with_the_killed_parent(warm):
    warm.run("while True: pass")
    process = warm.parent("save()\n")
    wait_until(warm.facts)
    process.kill()
    process.communicate(timeout=60)
    found = warm.facts()[-1]
    wait_until(lambda: not runs(found["pid"]) and not runs(found["parent"]))


def test_interpreter_ends_without_work_and_another_one_starts(warm):
    code = (
        "import modpack.selftest.interpreters as interpreters\n"
        "interpreters.IDLE_SECONDS = 0.3\n"
        "save(); time.sleep(2); save()\n"
    )
    finish(warm.parent(code))
    first, second = warm.facts()
    assert first["parent"] != second["parent"]


def test_forked_process_starts_its_own_interpreter(warm):
    code = (
        "save()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    save()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "save()\n"
        "print(os.getpid(), child)\n"
    )
    parent, child = map(int, finish(warm.parent(code, "-W", "error")).split())
    first, forked, last = (each["parent"] for each in warm.facts())
    assert first == last
    assert len({first, forked, parent, child}) == 4
    wait_until(lambda: not runs(forked))


def test_process_forked_while_the_interpreter_starts_can_save(warm):
    code = (
        "import threading\n"
        "import modpack.selftest.interpreters as interpreters\n"
        "thread = threading.Thread(target=save)\n"
        "thread.start()\n"
        "while interpreters._warm is None:\n"
        "    time.sleep(0.01)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    modpack.save(Net({folder!r}), {path!r} + '2', example_inputs=torch.ones(2))\n"
        "    os._exit(0)\n"
        "thread.join()\n"
        "os.waitpid(child, 0)\n"
    )
    code = code.format(folder=str(warm.folder), path=str(warm.path))
    finish(warm.parent(code))
    assert len({each["parent"] for each in warm.facts()}) == 2


def test_forked_process_does_not_keep_the_interpreter_of_its_parent(warm):
    code = (
        "save()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    for stream in (0, 1, 2):\n"
        "        os.close(stream)\n"
        "    time.sleep(600)\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    process = warm.parent(code)
    child = int(process.communicate(timeout=120)[0])
    try:
        wait_until(lambda: not runs(warm.facts()[-1]["parent"]))
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_exit_of_the_process_is_silent(warm):
    assert finish(warm.parent("save()\n", "-X", "dev", "-W", "ignore::DeprecationWarning")) == ""
