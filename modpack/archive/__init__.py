"""Package files: what is in them and where, writing them, and reading them with suspicion.

A package is a zip archive with one top-level folder (or that folder, unzipped). The zip code
here is modpack's own because the format is a subset of zip on purpose: every archive has one
reading, whoever reads it. Nothing here imports torch or pickle.
"""
