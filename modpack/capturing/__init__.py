"""Hooks of live models: collected, described as specs, and captured with what they refer to.

The counterpart of :mod:`modpack.hooks`, which registers hooks again.
"""
