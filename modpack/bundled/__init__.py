"""The loader that a package can contain, which loads it where modpack is not installed.

It consists of the runtime layers, this one included. In a package, ``face.py`` is
``modpack/__init__.py``, and ``start.py`` is ``__main__.py``, which ``python net.modpack`` runs.
"""
