"""Two layers of a ResNet of torchvision, extracted by torch.fx."""

import torch
from torchvision.models import resnet18
from torchvision.models.feature_extraction import create_feature_extractor

LIBRARIES = ()
COMPILED = ("torchvision",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    model = create_feature_extractor(resnet18(), {"layer1": "low", "layer3": "high"})
    return model, (torch.randn(1, 3, 32, 32),)
