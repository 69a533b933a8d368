"""Models whose tensors tests save next to a package."""

from __future__ import annotations

import torch

BASE_BYTES = 4 << 20


class Adapted(torch.nn.Module):
    """A large layer with a small one, as in a model with an adapter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = torch.nn.Linear(1024, BASE_BYTES >> 12, bias=False)
        torch.manual_seed(seed)
        self.adapter = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x)[..., :8] + self.adapter(x[..., :8])


class Kinds(torch.nn.Module):
    """Tensors that share, view, or arrange their storage in other ways than usual."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.nn.Parameter(torch.randn(5, 3))
        self.tied = self.plain
        self.transposed = torch.nn.Parameter(torch.randn(4, 6).t())
        self.conv = torch.nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
        whole = torch.arange(12.0)
        for name, tensor in {
            "first": whole[:4],
            "second": whole[6::2],
            "scalar": torch.tensor(7),
            "empty": torch.empty(0, 3),
            "bfloat": torch.randn(3).bfloat16(),
            "small": torch.randn(16).to(torch.float8_e4m3fn),
            "complex": torch.randn(3, dtype=torch.complex64),
            "double_complex": torch.randn(3, dtype=torch.complex128),
            "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
            "quantized": torch.quantize_per_tensor(torch.randn(9), 0.1, 3, torch.qint8),
            "ones": torch.ones(64),
            "other_ones": torch.ones(64),
        }.items():
            self.register_buffer(name, tensor)
