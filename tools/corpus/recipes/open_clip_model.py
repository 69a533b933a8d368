"""A small CLIP of open_clip, image and text."""

import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

LIBRARIES = ("open-clip-torch",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = CLIP(
        embed_dim=32,
        vision_cfg=CLIPVisionCfg(layers=2, width=32, head_width=8, patch_size=8, image_size=32),
        text_cfg=CLIPTextCfg(context_length=16, vocab_size=99, width=32, heads=4, layers=2),
    )
    return model, (torch.randn(2, 3, 32, 32), torch.randint(0, 99, (2, 16)))
