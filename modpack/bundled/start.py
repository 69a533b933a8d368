"""The module ``__main__`` of a package with a loader: ``python net.modpack`` runs it."""

import os
import sys

if __name__ == "__main__":
    # The package, where Python found this module. Modules are imported from it later, too, when the
    # current folder may be another one.
    sys.path[0] = os.path.abspath(sys.path[0])  # noqa: PTH100 - pathlib is not needed yet
    from modpack.bundled.command import main

    sys.exit(main(sys.argv[0], sys.argv[1:]))
