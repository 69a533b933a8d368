"""Server of :mod:`tests.warm_python` that imports torch once and forks interpreters.

It runs as an isolated program and does not import modpack or the tests.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import io
import json
import multiprocessing.process
import os
import runpy
import signal
import socket
import sys
import threading
import types
from typing import Any, NoReturn

import torch  # noqa: F401


def main(place: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen(64)
    sys.stdout.write("ready")
    sys.stdout.flush()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    parent = os.getppid()
    listener.settimeout(5)
    while os.getppid() == parent:
        try:
            asking, _ = listener.accept()
        except TimeoutError:
            continue
        asking.settimeout(None)
        if not os.fork():
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return serve(asking)
        asking.close()


def serve(asking: socket.socket) -> None:
    """Start the child, send its process id, and wait for its end as its parent."""
    size = int.from_bytes(asking.recv(8, socket.MSG_WAITALL), "big")
    numbers = array.array("i")
    text, ancillary, _, _ = asking.recvmsg(size, socket.CMSG_SPACE(64 * 4))
    while len(text) < size:
        text += asking.recv(size - len(text))
    for _, _, data in ancillary:
        numbers.frombytes(data)
    job = json.loads(text)
    child = os.fork()
    if not child:
        asking.close()
        return run(job, list(numbers))
    for number in numbers:
        os.close(number)
    asking.sendall(child.to_bytes(8, "big"))
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):  # the client may have ended
        asking.sendall((os.waitstatus_to_exitcode(status) & 0xFFFF).to_bytes(8, "big"))
    os._exit(0)


def run(job: dict[str, Any], numbers: list[int]) -> NoReturn:

    high = [fcntl.fcntl(number, fcntl.F_DUPFD, 500) for number in numbers]
    for number in numbers:
        os.close(number)
    for number, wanted in zip(high, job["descriptors"], strict=True):
        os.dup2(number, wanted, inheritable=wanted < 3)
        os.close(number)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    multiprocessing.process.ORIGINAL_DIR = job["folder"]  # set by the import of torch
    sys.stdin = open(0, closefd=False)
    if job["environment"].get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(open(1, "wb", 0, closefd=False), write_through=True)
    else:
        sys.stdout = open(1, "w", closefd=False)
        sys.stdout.reconfigure(line_buffering=os.isatty(1))
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")
    sys.stderr.reconfigure(line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.setrecursionlimit(sys.getrecursionlimit() + 4)  # the frames of this program
    kind, what, arguments = job["kind"], job["what"], job["arguments"]
    module = types.ModuleType("__main__")
    module.__builtins__ = __builtins__
    sys.modules["__main__"] = module
    code = 1
    try:
        if kind == "-c":
            sys.argv = ["-c", *arguments]
            first = ""
            program = compile(what, "<string>", "exec", dont_inherit=True)
        elif kind == "-m":
            sys.argv = ["-m", *arguments]
            first = os.getcwd()
        else:
            sys.argv = [what, *arguments]
            first = os.path.dirname(os.path.realpath(what))
            module.__file__ = what
            with open(what, "rb") as file:
                program = compile(file.read(), what, "exec", dont_inherit=True)
        if not job["isolated"]:
            searched = job["environment"].get("PYTHONPATH")
            sys.path[:0] = [first, *(searched.split(os.pathsep) if searched else [])]
        if kind == "-m":
            runpy._run_module_as_main(what)
        else:
            exec(program, vars(module))
        code = 0
    except SystemExit as ended:
        code = ended.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as failure:
        trace = failure.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(failure), failure.with_traceback(trace), trace)
        if isinstance(failure, KeyboardInterrupt):
            code = 130
    finally:
        try:
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            code = code or 120
        os._exit(code & 0xFF)


if __name__ == "__main__":
    main(sys.argv[1])
