"""What a package holds, or will hold: facts first, then renderers.

:mod:`~modpack.report.archived` reads the facts off a package file,
:mod:`~modpack.report.planned` off a plan; :mod:`~modpack.report.text` and
:mod:`~modpack.report.as_json` render them. Nothing here imports torch, unpickles, or runs
anything that a package holds.
"""
