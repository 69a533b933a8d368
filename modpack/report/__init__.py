"""What a package holds, or will hold: facts first, then renderers.

:mod:`~modpack.report.package_info` reads the facts off a package file,
:mod:`~modpack.report.facts` off a plan; :mod:`~modpack.report.text` and
:mod:`~modpack.report.json_output` render them. Nothing here imports torch, unpickles, or runs
anything that a package holds.
"""
