"""Objects that mean nothing outside of the process that made them, and what to do instead."""

from __future__ import annotations

import concurrent.futures
import contextvars
import io
import threading
import types

import torch

from modpack.pickling.base import LEAVE_OUT, Row, UnsupportedType

REFUSED: tuple[Row, ...] = (
    UnsupportedType(
        "a generator or a coroutine",
        (types.GeneratorType, types.AsyncGeneratorType, types.CoroutineType),
        "it is a call that has not ended, with a place in its code and variables of its own",
        "keep the function and its arguments, or a list of the values, and start anew",
    ),
    UnsupportedType(
        "a thread",
        (threading.Thread,),
        "it runs in this process",
        "start it when it is needed, and leave it out of the state (__getstate__)",
    ),
    UnsupportedType(
        "a process",
        ("subprocess.Popen", "multiprocessing.process.BaseProcess"),
        "it belongs to this process",
        "start it when it is needed, and leave it out of the state (__getstate__)",
    ),
    UnsupportedType(
        "a pool of processes",
        ("concurrent.futures.process.ProcessPoolExecutor", "multiprocessing.pool.Pool"),
        "its processes belong to this process",
        LEAVE_OUT,
    ),
    UnsupportedType(
        "a future",
        (concurrent.futures.Future, "_asyncio.Future", "torch.Future"),
        "what completes it runs in this process",
        "wait for its result, and keep that",
    ),
    UnsupportedType(
        "a lock or a value of multiprocessing",
        (
            "multiprocessing.synchronize.SemLock",
            "multiprocessing.sharedctypes.SynchronizedBase",
            "multiprocessing.queues.Queue",
            "multiprocessing.queues.SimpleQueue",
            "multiprocessing.connection._ConnectionBase",
        ),
        "it is shared with processes that this one starts",
        LEAVE_OUT,
    ),
    UnsupportedType(
        "an open file",
        (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO),
        "its descriptor belongs to this process",
        "keep the path and open it when it is used, or keep the content (io.BytesIO)",
    ),
    UnsupportedType(
        "a memory map",
        ("mmap.mmap",),
        "its memory belongs to this process",
        "keep the path and map it when it is used, or keep the content (bytes)",
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
        "its other end knows this process",
        "keep what it takes to connect, and connect when it is used",
    ),
    UnsupportedType(
        "a foreign library or a pointer (ctypes)",
        ("ctypes.CDLL", "_ctypes.CFuncPtr", "_ctypes._Pointer"),
        "its addresses mean something in this process only",
        "keep the library's name, and load it when it is used",
    ),
    UnsupportedType(
        "a stream or an event of a device",
        (
            *("torch.Stream", "torch.Event"),
            *("torch._C._CudaStreamBase", "torch._C._CudaEventBase"),
        ),
        "it is a queue of work of this process",
        "make it where the work is done, or on first use",
    ),
    UnsupportedType(
        "a module of `fully_shard` or `replicate`",
        (
            "torch.distributed.fsdp.FSDPModule",
            "torch.distributed._composable.fsdp.fully_shard.FSDPModule",  # before torch 2.6
        ),
        "each process holds a part of it, and shares work with the others of its group",
        "make a model without it as well, in every process, give that "
        "plain.load_state_dict(get_model_state_dict(model, "
        "options=StateDictOptions(full_state_dict=True))), both from "
        "torch.distributed.checkpoint.state_dict, and save it in one process",
        by_name=False,
        mixin=True,
    ),
    UnsupportedType(
        "a node of an autograd graph",
        (torch.autograd.graph.Node,),
        "graphs are not saved, only tensors",
        "keep the tensor, detached, and compute from it again; keep the node of a parameter, and "
        "with it the node's hooks, outside of what is saved: those are saved with the parameter",
    ),
    UnsupportedType(
        "a fake tensor",
        ("torch._subclasses.fake_tensor.FakeTensor",),
        "it has no values, and belongs to a mode of this process",
        "keep a tensor of the device meta",
    ),
    UnsupportedType(
        "the module of an exported program",
        (
            "torch.export._unlift._StatefulGraphModule",
            "torch.export.unflatten.UnflattenedModule",
        ),
        "torch writes its code while it makes the module",
        "save the ExportedProgram (torch.export.export) in its place, and call .module() on it, or "
        "torch.export.unflatten, where the package is loaded",
    ),
    UnsupportedType(
        "a registration of operators",
        ("torch.library.Library", "torch._library.custom_ops.CustomOpDef"),
        "it changes tables of this process",
        "make it at the top level of a module, which registers it when it is imported",
    ),
    UnsupportedType(
        "a context, or a token of a context variable",
        (contextvars.Context, contextvars.Token),
        "it belongs to a call that runs in this process",
        "keep the values of the variables that matter",
    ),
    UnsupportedType(
        "a frame or a traceback",
        (types.FrameType, types.TracebackType),
        "it belongs to a call in this process",
        "keep the exception, or its text (traceback.format_exception)",
    ),
    UnsupportedType(
        "a code object",
        (types.CodeType,),
        "bytecode is for one version of Python",
        "keep the function, or the source",
    ),
    UnsupportedType(
        "a match of a regular expression",
        ("re.Match",),
        "it cannot be made again",
        "keep its groups (match.groups(), match.groupdict())",
    ),
    UnsupportedType(
        "a running hash or compression",
        ("_hashlib.HASH", "zlib.Compress", "zlib.Decompress"),
        "its state cannot be read",
        "finish it, and keep the result",
    ),
)
"""Rows for objects without a meaning elsewhere."""
