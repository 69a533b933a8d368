"""A Whisper of transformers, with a hook on its encoder."""

import torch
from transformers import WhisperConfig, WhisperModel

LIBRARIES = ("transformers",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    config = WhisperConfig(
        vocab_size=99,
        num_mel_bins=8,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=10,
        max_target_positions=10,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = WhisperModel(config)
    model.encoder.layers[0].register_forward_hook(lambda layer, given, found: found)
    mask = torch.ones(1, 20, dtype=torch.long)
    return model, (torch.randn(1, 8, 20), mask, torch.tensor([[1, 3]]))
