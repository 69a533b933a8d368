"""Plots for the terminal, as a laboratory might keep them on the machine that trains."""

from labplot.sheet import Sheet

__all__ = ["Sheet"]
