"""A YOLO detector of ultralytics, built from a yaml file of the library."""

import torch
from ultralytics.nn.tasks import DetectionModel

LIBRARIES = ("ultralytics",)
OPERATORS = "torchvision"


def build():
    """Return the model and its inputs."""
    return DetectionModel("yolov8n.yaml", nc=3, verbose=False), (torch.rand(1, 3, 64, 64),)
