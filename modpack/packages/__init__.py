"""The Python package that contains the private namespaces of loaded packages.

It has no modules of modpack's own. Loading a package adds ``modpack.packages.p<digest>``, with the
package's modules below it. In a process that has not loaded the package, an import of such a name
reopens the package: :mod:`pickle` imports the names that another process has sent.
"""

from __future__ import annotations

import sys

from modpack.reopening import ReopeningFinder

__path__ = []  # no folder is searched

sys.meta_path.append(ReopeningFinder())

del sys, ReopeningFinder
