"""Whether an object can be copied and pickled. Its tensors are neither copied nor written."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch

from modpack.saving.object_paths import iter_objects


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: object) -> int | None:
        if isinstance(obj, (torch.Tensor, torch.UntypedStorage, torch.storage.TypedStorage)):
            return 0
        return None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: object) -> Any:
        return torch.empty(0)


def why_not_copyable(obj: object) -> str:
    """Return why :func:`copy.deepcopy` or a pickle round trip fails, or an empty string.

    Libraries may look classes up by the path of their module, which differs in a private namespace.

    Args:
        obj: A live or loaded object. The methods of its classes run.
    """
    memo: dict[int, Any] = {id(t): t for t in iter_objects(obj) if isinstance(t, torch.Tensor)}
    try:
        copy.deepcopy(obj, memo)
    except Exception as failure:  # the class's own methods may raise anything
        return f"copy.deepcopy raises {type(failure).__name__}: {failure}"
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(obj)
    except Exception as failure:
        return f"pickle.dumps raises {type(failure).__name__}: {failure}"
    buffer.seek(0)
    try:
        _Unpickler(buffer).load()
    except (AttributeError, ImportError, LookupError, TypeError, ValueError) as failure:
        return f"pickle.loads raises {type(failure).__name__}: {failure}"
    except Exception:  # __setstate__ may reject the empty tensors
        return ""
    return ""
