"""Reports about packages and plans: facts, and their renderers.

:mod:`~modpack.report.package_info` reads facts from a package file, :mod:`~modpack.report.facts`
from a plan. :mod:`~modpack.report.text` and :mod:`~modpack.report.json_output` render them.
Nothing here imports torch, unpickles, or executes package contents.
"""
