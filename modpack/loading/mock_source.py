"""Stand-ins for mocked modules, as source text.

A package holds real source only, and so do its mocks: each mocked module becomes a small
file made by :func:`mock_source`, and all of them import one shared file, the runtime, whose
text is :func:`runtime_source`. Python's own import machinery loads them, an auditor can read
them, and ``torch.package.PackageImporter`` loads them as well (if the archive declares extern
the modules of the standard library that the runtime imports).

What cannot be tolerated at import time, because Python itself refuses it: a mocked base class
together with an explicit ``metaclass=`` that is not related to ABCMeta, with ``Enum``, or in the
definition of a ``Protocol``; and a class with real bases whose metaclass derives from a mocked
one. Such modules fail to import with Python's own error.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from modpack.archive.layout import RUNTIME_MODULE

_TEMPLATE = '''\
"""A stand-in for the module {shown_module}, which is not in this package.

It was mocked out when the package was exported.
Rule: {shown_rule}
Reached through: {shown_chain}

Importing it, subclassing and decorating with what it hands out, and naming that in annotations
all work; calling any of it once the import is over raises NotImplementedError.
"""

from {runtime} import mocked_module as _mocked_module

__all__ = []

_STAND_IN = _mocked_module(
    module={module!r},
    rule={rule!r},
    chain={chain!r},
)
'''

_ATTRIBUTES = '''\


def __getattr__(name):
    """Hand out a stand-in for any attribute (PEP 562)."""
    return _STAND_IN.__getattr__(name)
'''

_ATTRIBUTES_AND_SUBMODULES = '''\

# These are modules of this package, whether mocked or real: they come before stand-ins.
_SUBMODULES = frozenset({submodules!r})


def __getattr__(name):
    """Import a submodule, or hand out a stand-in for any other attribute (PEP 562)."""
    if name in _SUBMODULES:
        return __import__(name, globals(), None, ("__name__",), 1)
    return _STAND_IN.__getattr__(name)
'''


def runtime_source() -> str:
    """The source of the module that every mock imports, to be stored as :data:`RUNTIME_MODULE`.

    Returns:
        Python source. It needs only the standard library, and Python 3.8 or later.
    """
    return resources.files(__package__).joinpath("mock_runtime.py").read_text(encoding="utf-8")


def mock_source(
    module: str, rule: str, chain: tuple[str, ...], submodules: Iterable[str] = ()
) -> str:
    """The source of the stand-in for one mocked module.

    Args:
        module: absolute name of the module as its importers write it (``numpy.linalg``).
        rule: the rule that mocked it, as the user wrote it (``mock('numpy.**')``).
        chain: the modules through which it is reached, from a root of the package to
            ``module`` itself (``("net", "mylib.model", "numpy.linalg")``).
        submodules: names, relative to ``module`` and one component each, of modules in the
            package that lie directly below it. ``from module import name`` then finds the
            module; without them it finds a stand-in, even if the submodule is interned.

    Returns:
        Python source; every argument is embedded so that no text in it can become code.

    Example:
        >>> source = mock_source("numpy.linalg", "mock('numpy.**')", ("net", "numpy.linalg"))
        >>> print(source.splitlines()[0].strip('"'))
        A stand-in for the module numpy.linalg, which is not in this package.
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
    names = tuple(sorted(submodules))
    return head + (_ATTRIBUTES_AND_SUBMODULES.format(submodules=names) if names else _ATTRIBUTES)


def _inside_docstring(text: str) -> str:
    """Escape what could end a docstring or hide in it: quotes, backslashes, control codes."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")
