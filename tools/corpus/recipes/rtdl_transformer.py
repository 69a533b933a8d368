"""An FT-Transformer of rtdl."""

import torch
from rtdl_revisiting_models import FTTransformer

LIBRARIES = ("rtdl-revisiting-models",)


def build():
    """Return the model and its inputs."""
    options = FTTransformer.get_default_kwargs(n_blocks=1)
    model = FTTransformer(n_cont_features=3, cat_cardinalities=[4, 5], d_out=2, **options)
    return model, (torch.randn(2, 3), torch.randint(0, 4, (2, 2)))
