"""The shared layer: values and functions that the layers above it use.

Its modules import only each other, modpack's errors and diagnostics, and the standard library.
"""
