"""A stack of xLSTM blocks, with and without memory matrices."""

import torch
from xlstm import (
    FeedForwardConfig,
    mLSTMBlockConfig,
    mLSTMLayerConfig,
    sLSTMBlockConfig,
    sLSTMLayerConfig,
    xLSTMBlockStack,
    xLSTMBlockStackConfig,
)

LIBRARIES = ("xlstm",)


def build():
    """Return the model and its inputs."""
    config = xLSTMBlockStackConfig(
        mlstm_block=mLSTMBlockConfig(
            mlstm=mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=4)
        ),
        slstm_block=sLSTMBlockConfig(
            slstm=sLSTMLayerConfig(backend="vanilla", num_heads=4, conv1d_kernel_size=4),
            feedforward=FeedForwardConfig(proj_factor=1.3, act_fn="gelu"),
        ),
        context_length=16,
        num_blocks=2,
        embedding_dim=32,
        slstm_at=[1],
    )
    return xLSTMBlockStack(config), (torch.randn(2, 16, 32),)
