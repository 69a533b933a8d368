"""Source text of mocks.

Mocks are source files like all other modules of a package. :func:`mock_source` generates one
small file for each mocked module, and all of them import one shared module, whose text is
:func:`runtime_source`. Python's own import machinery loads them, and an auditor can read them.
``torch.package.PackageImporter`` loads them too, if the archive declares the standard-library
modules extern that the shared module imports.

Python itself rejects some class definitions with mocks, so such modules fail to import with
Python's own error: a mocked base class with an explicit ``metaclass=`` unrelated to ABCMeta, with
``Enum``, or in the definition of a ``Protocol``; and a class with real bases whose metaclass
derives from a mocked one.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from modpack.archive.layout import RUNTIME_MODULE

_TEMPLATE = '''\
"""Mock of the module {shown_module}, which is not included in this package.

Rule: {shown_rule}
Imported through: {shown_chain}

While packaged modules are imported, its attributes can be imported, subclassed, called, and used
as decorators. Later calls raise NotImplementedError. Use in annotations is always allowed.
"""

from {runtime} import mocked_module as _mocked_module

__all__ = []

_MOCK = _mocked_module(
    module={module!r},
    rule={rule!r},
    chain={chain!r},
)
'''

_ATTRIBUTES = '''\


def __getattr__(name):
    """Return a mock for every attribute (PEP 562)."""
    return _MOCK.__getattr__(name)
'''

_ATTRIBUTES_AND_SUBMODULES = '''\

# Modules of this package, mocked or real. They take precedence over mocked attributes.
_SUBMODULES = frozenset({submodules!r})


def __getattr__(name):
    """Import a submodule, or return a mock for any other attribute (PEP 562)."""
    if name in _SUBMODULES:
        return __import__(name, globals(), None, ("__name__",), 1)
    return _MOCK.__getattr__(name)
'''


def runtime_source() -> str:
    """Return the source of the module that every mock imports, stored as :data:`RUNTIME_MODULE`.

    It needs only the standard library, and Python 3.8 or later.
    """
    runtime = resources.files("modpack.loading").joinpath("mock_runtime.py")
    return runtime.read_text(encoding="utf-8")


def mock_source(
    module: str, rule: str, chain: tuple[str, ...], submodules: Iterable[str] = ()
) -> str:
    """Return the source of the mock of one module.

    Args:
        module: Absolute name of the module as its importers write it (``numpy.linalg``).
        rule: The rule that mocked it, as the user wrote it (``mock('numpy.**')``).
        chain: The chain of importers, from a root of the package to ``module`` itself
            (``("net", "mylib.model", "numpy.linalg")``).
        submodules: Names of the package's modules directly below ``module``, each one component.
            ``from module import name`` then finds the module. Without them it finds a mock, even
            if the submodule is interned.

    Returns:
        Python source. Every argument is quoted, so that no text in it can become code.

    Example:
        >>> source = mock_source("numpy.linalg", "mock('numpy.**')", ("net", "numpy.linalg"))
        >>> print(source.splitlines()[0].strip('"'))
        Mock of the module numpy.linalg, which is not included in this package.
    """
    head = _TEMPLATE.format(
        shown_module=_inside_docstring(module),
        shown_rule=_inside_docstring(rule),
        shown_chain=_inside_docstring(" -> ".join(chain or (module,))),
        runtime=RUNTIME_MODULE,
        module=module,
        rule=rule,
        chain=tuple(chain),
    )
    # Submodules come first: a mocked attribute of that name would hide an interned module.
    names = tuple(sorted(submodules))
    return head + (_ATTRIBUTES_AND_SUBMODULES.format(submodules=names) if names else _ATTRIBUTES)


def _inside_docstring(text: str) -> str:
    """Escape characters that could end a docstring or be invisible in it."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
