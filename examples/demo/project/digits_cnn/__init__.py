"""Handwritten digit recognition: a sample project that does not use modpack."""

from .model import DigitsNet, Settings

__all__ = ["DigitsNet", "Settings"]
