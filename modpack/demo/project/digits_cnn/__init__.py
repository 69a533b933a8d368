"""Reads handwritten digits: the project of somebody who has never heard of packages."""

from .model import DigitsNet, Settings

__all__ = ["DigitsNet", "Settings"]
