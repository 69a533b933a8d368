"""What is saved of objects that belong to threads: fresh ones, for the threads stay behind."""

from __future__ import annotations

import contextvars
import queue
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from modpack.pickling import remade
from modpack.pickling.rows import BY_NAME, LEAVE_OUT, RefusedError, Row, Substitute, Surroundings

__all__ = ["THREADS"]


def _lock(lock: Any, around: Surroundings) -> Any:
    return remade.fresh_lock, ()


def _rlock(lock: Any, around: Surroundings) -> Any:
    return remade.fresh_rlock, ()


def _condition(condition: Any, around: Surroundings) -> Any:
    return remade.fresh_condition, (condition._lock,)


def _semaphore(semaphore: Any, around: Surroundings) -> Any:
    return remade.fresh_semaphore, (semaphore._initial_value,)


def _barrier(barrier: Any, around: Surroundings) -> Any:
    return remade.fresh_barrier, (barrier.parties, barrier._action, barrier._timeout)


def _local(local: Any, around: Surroundings) -> Any:
    return remade.thread_local, (type(local),), dict(vars(local))


def _executor(pool: Any, around: Surroundings) -> Any:
    if pool._work_queue.qsize() or pool._shutdown:
        state = "has been shut down" if pool._shutdown else "has work that waits"
        raise RefusedError(f"a pool of threads that {state} cannot be saved. Remedy: {LEAVE_OUT}")
    name = pool._thread_name_prefix
    name = "" if _COUNTED.fullmatch(name) else name  # it gets one of its own again
    return remade.fresh_executor, (pool._max_workers, name, pool._initializer, pool._initargs)


_COUNTED = re.compile(r"ThreadPoolExecutor-\d+")
"""How a pool is called that nobody named: by the number of such pools in the process."""


def _simple_queue(waiting: Any, around: Surroundings) -> Any:
    if not waiting.empty():
        raise RefusedError(
            "a queue.SimpleQueue that holds something cannot be saved, for nothing tells what. "
            "Remedy: empty it, or use a queue.Queue"
        )
    return remade.fresh_simple_queue, ()


def _context_var(variable: Any, around: Surroundings) -> Any:
    try:
        default: tuple[Any, ...] = (contextvars.Context().run(variable.get),)
    except LookupError:
        default = ()
    return remade.fresh_context_var, (variable.name, default)


_FRESH = "nothing of its state: the threads that hold it or wait exist in this process only"

THREADS: tuple[Row, ...] = (
    Substitute(
        "`threading.Lock`, held or not",
        (type(threading.Lock()),),
        BY_NAME + _FRESH,
        "a lock that nobody holds",
        _lock,
        by_name=True,
    ),
    Substitute(
        "`threading.RLock`, held or not",
        (type(threading.RLock()),),
        BY_NAME + _FRESH,
        "a lock that nobody holds",
        _rlock,
        by_name=True,
    ),
    Substitute(
        "`threading.Condition`",
        (threading.Condition,),
        BY_NAME + "its lock",
        "a condition of that lock, on which nobody waits",
        _condition,
        by_name=True,
    ),
    Substitute(
        "`threading.Event`, `Semaphore`",
        (threading.Event, threading.Semaphore),
        BY_NAME + "whether it is set, or its counter",
        "the same, on which nobody waits",
        by_name=True,
    ),
    Substitute(
        "`threading.BoundedSemaphore`",
        (threading.BoundedSemaphore,),
        BY_NAME + "its bound",
        "one of which nobody holds anything",
        _semaphore,
        by_name=True,
    ),
    Substitute(
        "`threading.Barrier`",
        (threading.Barrier,),
        BY_NAME + "its parameters",
        "one at which nobody waits",
        _barrier,
        by_name=True,
    ),
    Substitute(
        "`threading.local`",
        (threading.local,),
        BY_NAME + "what the saving thread sees of it",
        "one with these values in the thread that loads it, and without any in others",
        _local,
        subclasses=True,
        by_name=True,
    ),
    Substitute(
        "`concurrent.futures.ThreadPoolExecutor` without waiting work",
        (ThreadPoolExecutor,),
        BY_NAME + "its parameters",
        "one that has started no thread yet",
        _executor,
        by_name=True,
    ),
    Substitute(
        "`queue.SimpleQueue`, empty",
        (queue.SimpleQueue,),
        "nothing",
        "an empty one",
        _simple_queue,
        by_name=True,
    ),
    Substitute(
        "`contextvars.ContextVar`",
        (contextvars.ContextVar,),
        BY_NAME + "its name and its default",
        "the variable of that module; else a new one, not set",
        _context_var,
        by_name=True,
    ),
)
"""Rows for locks, queues, pools, and what each thread has of its own."""
