"""The process that loads a package and forks the workers that run it.

The server starts this process with its own import path and the descriptor of a socket. The process
receives a load order over the socket, loads the package, and describes it. Each further byte comes
with the socket of a worker, which is a fork of this process. Forks share the weights, and torch's
memory, too. This process runs no forward itself: threads of OpenMP would not survive a fork. If the
package does not survive one either, this process becomes the worker itself. A closed socket ends
the process.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from modpack.core.codec import from_json, record_to_json
from modpack.core.process import die_with
from modpack.errors import ModpackError, ModpackWarning
from modpack.serving.frames import Channel, LoadedPackage, LoadOrder
from modpack.serving.settings import Answer

if TYPE_CHECKING:
    from modpack.predicting.predictor import Predictor

_SWITCH_SECONDS: Final = 0.0005


def main() -> None:
    """Load a package, and start workers until the server closes the socket."""
    # Ctrl-C and systemd signal all processes. The server finishes accepted requests first, and
    # then closes the sockets.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":  # a forward that never ends does not see the closed socket
        die_with(int(sys.argv[2]))
    control = Channel(socket.socket(fileno=int(sys.argv[1])))
    message = control.receive()
    if message is None:
        return
    order = from_json(LoadOrder, message[0]["load"], "the order")
    try:
        predictor, loaded, threads = _load(order)
    except Exception as failure:
        with suppress(OSError):  # the server has ended
            control.send({"failed": _describe(order, failure)})
        return
    try:
        control.send({"loaded": record_to_json(loaded)})
    except OSError:
        return
    _start_workers(control.connection, predictor, order, loaded.can_fork, threads)


def _describe(order: LoadOrder, failure: Exception) -> str:
    if isinstance(failure, ModpackError):
        return str(failure)
    return f"{order.path}: loading failed: {type(failure).__name__}: {failure}"


def _load(order: LoadOrder) -> tuple[Predictor, LoadedPackage, int]:
    """Return the loaded package, its description, and the number of threads of each worker."""
    from modpack.archive.reader import open_archive

    settings = order.settings
    open_archive(order.path).close()  # report a wrong file before importing torch
    import torch

    import modpack.serving.answering  # noqa: F401  # forks share the imported modules
    from modpack.predicting.predictor import Predictor

    # Without a thread pool in this process, forks can create their own.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ModpackWarning)
        predictor = Predictor(
            order.path,
            device=settings.device,
            policy=order.policy,
            on_mismatch=settings.on_mismatch,  # type: ignore[arg-type]
            verify=settings.verify,  # type: ignore[arg-type]
        )
    if order.digest not in ("", predictor.digest):
        raise ModpackError(f"{order.path}: the package was replaced while workers started")
    texts = tuple(str(each.message) for each in caught if issubclass(each.category, ModpackWarning))
    can_fork = _can_fork(predictor.device)
    loaded = LoadedPackage(predictor.digest, predictor.signature, can_fork, texts)
    return predictor, loaded, settings.threads or max(1, threads // settings.workers)


def _can_fork(device: str) -> bool:
    """Return whether forks of this process can run the model."""
    is_alone = threading.active_count() == 1  # threads of packaged code would be missing
    return sys.platform == "linux" and device == "cpu" and is_alone


def _start_workers(
    control: socket.socket, predictor: Predictor, order: LoadOrder, can_fork: bool, threads: int
) -> None:
    import gc

    gc.collect()
    gc.freeze()  # a collection in a worker would write to all objects, and unshare their memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system removes ended workers
    server = os.getpid()
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not command:
            return
        if not can_fork:
            return _work(descriptors[0], predictor, order, threads)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # libraries' idle threads
            is_worker = os.fork() == 0
        if is_worker:
            status = 1
            try:
                control.close()
                die_with(server)
                _work(descriptors[0], predictor, order, threads)
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(descriptors[0])


def _work(descriptor: int, predictor: Predictor, order: LoadOrder, threads: int) -> None:
    """Answer requests until the server closes the socket."""
    import torch

    from modpack.serving.answering import Answerer, Received

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    torch.set_num_threads(threads)
    # Forks would otherwise draw the same random numbers.
    torch.seed()
    random.seed()
    answerer = Answerer(predictor, order.name, order.settings.max_body)
    channel = Channel(socket.socket(fileno=descriptor))
    channel.send({"worker": os.getpid()})
    # So that no request waits for an import. The zygote cannot do this: an imported library may
    # start threads, and a process with threads cannot fork.
    threading.Thread(target=_import_waiting, args=(predictor,), daemon=True).start()
    max_batch = order.settings.max_batch
    while (message := channel.receive()) is not None:
        header, payload = message[0], memoryview(message[1])
        received, start = [], 0
        for kind, encoding, json_length, size in header["jobs"]:
            body = payload[start : start + size]
            received.append(Received(kind, encoding, json_length, body))
            start += size
        started = time.perf_counter()
        answers: list[Answer] = []
        for first in range(0, len(received), max_batch):
            answers += answerer.answer(received[first : first + max_batch])
        seconds = time.perf_counter() - started
        described = [[a.status, a.media_type, a.json_length, len(a.body)] for a in answers]
        channel.send({"answers": described, "seconds": seconds}, [a.body for a in answers])


def _import_waiting(predictor: Predictor) -> None:
    # Imports keep the interpreter busy. A request gets it after half a millisecond instead of 5.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        predictor.import_waiting()
    finally:
        sys.setswitchinterval(interval)
