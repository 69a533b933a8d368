"""A tree of file names, for looking at what a package holds."""

from __future__ import annotations

from collections.abc import Iterable

from modpack.core.globs import GlobGroup, GlobPattern

__all__ = ["Directory"]


class Directory:
    """A folder or a file in a package. Printing it shows the tree.

    Attributes:
        name: its name, without the path to it.
        is_dir: whether it is a folder.
        children: what is in it, by name, sorted.

    >>> tree = Directory.of("net", ["mylib/__init__.py", "mylib/net.py"])
    >>> print(tree)
    net
    └── mylib
        ├── __init__.py
        └── net.py
    >>> tree.has_file("mylib/net.py"), tree.has_file("mylib/other.py")
    (True, False)
    """

    def __init__(self, name: str, is_dir: bool) -> None:
        self.name = name
        self.is_dir = is_dir
        self.children: dict[str, Directory] = {}

    @staticmethod
    def of(
        name: str, files: Iterable[str], include: GlobPattern = "**", exclude: GlobPattern = ()
    ) -> Directory:
        """Build the tree of some files.

        Args:
            name: the name of the top folder.
            files: paths with ``/``, relative to it.
            include: patterns over whole paths; ``**`` crosses folders.
            exclude: patterns for files to leave out.
        """
        wanted = GlobGroup(include, exclude=exclude, separator="/")
        top = Directory(name, True)
        for file in sorted(files):
            if wanted.matches(file):
                top._add(file)
        return top

    def has_file(self, filename: str) -> bool:
        """Whether the tree holds a file or folder, given by its path from here.

        Raises:
            TypeError: ``filename`` is no string.
        """
        if not isinstance(filename, str):
            raise TypeError(f"filename must be a path (str), not {type(filename).__name__}")
        found: Directory | None = self
        for part in filename.split("/"):
            found = found.children.get(part) if found is not None else None
        return found is not None

    def _add(self, file: str) -> None:
        folder = self
        *parents, name = file.split("/")
        for parent in parents:
            folder = folder.children.setdefault(parent, Directory(parent, True))
        folder.children[name] = Directory(name, False)

    def __str__(self) -> str:
        return "\n".join([self.name, *self._lines("")])

    def __repr__(self) -> str:
        return f"<Directory {self.name!r} with {len(self.children)} children>"

    def _lines(self, indent: str) -> Iterable[str]:
        last = len(self.children) - 1
        for position, child in enumerate(self.children.values()):
            branch, below = ("└── ", "    ") if position == last else ("├── ", "│   ")
            yield indent + branch + child.name
            yield from child._lines(indent + below)
