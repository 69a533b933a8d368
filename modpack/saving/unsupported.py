"""Objects that have no meaning outside their process, each with a reason and a hint."""

from __future__ import annotations

import concurrent.futures
import contextvars
import io
import threading
import types

import torch

from modpack.saving.base import LEAVE_OUT, Row, UnsupportedType

REFUSED: tuple[Row, ...] = (
    UnsupportedType(
        "a generator or a coroutine",
        (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType),
        "it is a suspended call with its own variables",
        "Save the function and its arguments, or a list of the values, and start it again.",
    ),
    UnsupportedType(
        "a thread",
        (threading.Thread,),
        "it runs in this process",
        "Exclude it from the state (__getstate__), and start it on first use.",
    ),
    UnsupportedType(
        "a process",
        ("subprocess.Popen", "multiprocessing.process.BaseProcess"),
        "it belongs to this process",
        "Exclude it from the state (__getstate__), and start it on first use.",
    ),
    UnsupportedType(
        "a process pool",
        ("concurrent.futures.process.ProcessPoolExecutor", "multiprocessing.pool.Pool"),
        "its processes belong to this process",
        LEAVE_OUT,
    ),
    UnsupportedType(
        "a future",
        (concurrent.futures.Future, "_asyncio.Future", "torch.Future"),
        "the code that completes it runs in this process",
        "Wait for its result, and save that.",
    ),
    UnsupportedType(
        "a multiprocessing lock, queue, or shared value",
        (
            "multiprocessing.synchronize.SemLock",
            "multiprocessing.sharedctypes.SynchronizedBase",
            "multiprocessing.queues.Queue",
            "multiprocessing.queues.SimpleQueue",
            "multiprocessing.connection._ConnectionBase",
        ),
        "it is shared with child processes of this one",
        LEAVE_OUT,
    ),
    UnsupportedType(
        "an open file",
        (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO),
        "its file descriptor belongs to this process",
        "Save the path and open it on first use, or save the content (io.BytesIO).",
    ),
    UnsupportedType(
        "a connection",
        (
            "socket.socket",
            "_socket.socket",
            "sqlite3.Connection",
            "sqlite3.Cursor",
            "ssl.SSLContext",
        ),
        "it is open in this process only",
        "Save the connection parameters, and connect on first use.",
    ),
    UnsupportedType(
        "a foreign library or a pointer (ctypes)",
        ("ctypes.CDLL", "_ctypes.CFuncPtr", "_ctypes._Pointer"),
        "its addresses are valid in this process only",
        "Save the library's name, and load it on first use.",
    ),
    UnsupportedType(
        "a device stream or event",
        (
            *("torch.Stream", "torch.Event"),
            *("torch._C._CudaStreamBase", "torch._C._CudaEventBase"),
        ),
        "it is part of this process's work queues",
        "Create it where the work is done, or on first use.",
    ),
    UnsupportedType(
        "a module of `fully_shard`, `replicate`, or `FullyShardedDataParallel`",
        (
            "torch.distributed._composable_state._State",  # what each of them holds or is
            "torch.distributed.fsdp.FSDPModule",
        ),
        "each process of its group has only a part of it",
        "Build the model again without it in every process, load the state with "
        "plain.load_state_dict(get_model_state_dict(model, "
        "options=StateDictOptions(full_state_dict=True))), both from "
        "torch.distributed.checkpoint.state_dict, and save that model in one process.",
        by_name=False,
        mixin=True,
    ),
    UnsupportedType(
        "an autograd graph node",
        (torch.autograd.graph.Node,),
        "graphs are not saved, only tensors",
        "Save the detached tensor, and compute from it again. Exclude a parameter's node: "
        "the hooks on it are saved with the parameter.",
    ),
    UnsupportedType(
        "a fake tensor",
        ("torch._subclasses.fake_tensor.FakeTensor",),
        "it has no values, and belongs to a mode of this process",
        "Save a tensor on the meta device.",
    ),
    UnsupportedType(
        "the module of an exported program",
        (
            "torch.export._unlift._StatefulGraphModule",
            "torch.export.unflatten.UnflattenedModule",
        ),
        "torch generates its code when it creates the module",
        "Save the ExportedProgram (torch.export.export) instead, and call .module() on it or "
        "torch.export.unflatten after loading.",
    ),
    UnsupportedType(
        "an operator registration",
        ("torch.library.Library", "torch._library.custom_ops.CustomOpDef"),
        "it changes global tables of this process",
        "Create it at the top level of a module, so that importing the module registers it.",
    ),
    UnsupportedType(
        "an object that Python itself cannot pickle",
        (
            *(types.CodeType, types.FrameType, types.TracebackType),
            *(contextvars.Context, contextvars.Token),
            *("mmap.mmap", "re.Match", "_hashlib.HASH", "zlib.Compress", "zlib.Decompress"),
        ),
        "it belongs to a call, an operation, or the memory of this process",
        "Save what you need from it, such as the groups of a match or the text of a traceback.",
    ),
)
"""Rows for types whose objects cannot be saved."""
