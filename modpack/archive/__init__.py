"""Package files: their layout, and a strict reader for untrusted input.

A package is a zip archive with one top-level folder, or that folder unzipped. modpack has its own
zip code because the format is a deliberate subset of zip: all readers interpret an archive in the
same way. No module in this layer imports torch or pickle. :mod:`modpack.writing` writes packages.
"""
