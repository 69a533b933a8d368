"""Models of libraries, small ones with all of the library's imports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

Built = tuple[torch.nn.Module, tuple[Any, ...], str]
"""A model, its inputs, and the top-level module of its library."""


def _bert() -> Built:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000}
    config = BertConfig(num_hidden_layers=2, num_attention_heads=4, **sizes)
    return BertModel(config), (torch.randint(0, 99, (2, 7)),), "transformers"


def _unet() -> Built:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    inputs = torch.randn(1, 3, 16, 16), torch.tensor([5]), torch.randn(1, 4, 32)
    return model, inputs, "diffusers"


def _vit() -> Built:
    import timm

    sizes = {"num_classes": 10, "img_size": 32, "patch_size": 8, "depth": 2}
    return timm.create_model("vit_tiny_patch16_224", **sizes), (torch.randn(1, 3, 32, 32),), "timm"


def _generated() -> Built:
    sys.path.insert(0, "generated")
    from app.model import Net

    return Net(), (torch.ones(1, 4),), "app"


MODELS: dict[str, Callable[[], Built]] = {
    "bert": _bert,
    "unet": _unet,
    "vit": _vit,
    "generated": _generated,
}
