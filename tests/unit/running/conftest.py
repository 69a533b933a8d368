"""Call signatures, and sources read to their end."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from modpack.core.call_signature import CallSignature, ValueSpec
from modpack.predicting.rows import BadRow, Layout, layout_of, merge
from modpack.running.formats import open_source
from modpack.running.inputs import resolve_inputs


class Read(NamedTuple):
    """What a source yielded: values of each batch, bad rows, and places of good rows."""

    batches: list[dict[str, object]]
    bad: list[str]
    rows: list[tuple[int, int | None]]


class Calls:
    """Makes call signatures, and reads inputs by them."""

    @staticmethod
    def spec(name, dtype="float32", shape=("batch", 3), **more):
        if dtype in ("int", "float", "str", "bool", "any"):
            return ValueSpec(name, (name,), dtype, **more)
        return ValueSpec(name, (name,), "tensor", dtype, shape, **more)

    @classmethod
    def layout(cls, *specs, size=None, batching="independent", outputs=(), **more) -> Layout:
        specs = specs or (cls.spec("x"),)
        has_batch = any(spec.shape and spec.shape[0] == "batch" for spec in specs)
        signature = CallSignature(
            ("model", "model.pkl"),
            tuple(spec.name for spec in specs),
            len(specs),
            specs,
            tuple(outputs),
            batch="batch" if has_batch else None,
            batching=batching,
            **more,
        )
        return layout_of(signature, size)

    @staticmethod
    def read(layout: Layout, *inputs: object, **options: object) -> Read:
        source = open_source(resolve_inputs(map(str, inputs)), layout, **options)
        batches, bad, rows = [], [], []
        for item in merge(source.chunks(), layout):
            if isinstance(item, BadRow):
                bad.append(str(item.place.error(item.reason)))
            else:
                batches.append(
                    {
                        name: value.tolist() if isinstance(value, torch.Tensor) else value
                        for name, value in item.values.items()
                    }
                )
                rows += [(place.row, place.line) for place in item.places]
        return Read(batches, bad, rows)


@pytest.fixture
def calls() -> type[Calls]:
    return Calls
