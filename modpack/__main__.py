"""The command line as ``python -m modpack``."""

from modpack.cli import main

if __name__ == "__main__":
    main()
