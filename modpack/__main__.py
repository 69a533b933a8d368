"""``python -m modpack`` is the same as ``modpack``."""

from modpack.cli import main

if __name__ == "__main__":
    main()
