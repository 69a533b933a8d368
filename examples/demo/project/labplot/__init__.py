"""Terminal plots, installed only on the training machine."""

from labplot.sheet import Sheet

__all__ = ["Sheet"]
