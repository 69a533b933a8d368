"""Whether a name in a pickle may be there: the package's own, known, declared, or none of these."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from modpack.archive import layout
from modpack.archive.base import Archive
from modpack.archive.externs import read_externs
from modpack.core.knownnames import is_known, is_standard, may_be_called
from modpack.core.names import module_record, root_of
from modpack.core.trust import TrustPolicy
from modpack.discovery.namesources import NameSources
from modpack.discovery.pickles import NameUse, PickledName
from modpack.hermetic.index import EntryKind, ModuleIndex

__all__ = ["Judge", "Verdict"]

_OPERATORS: Final = "torch.ops"
"""Where operators are found; what else is there loads libraries."""
_OPERATOR: Final = re.compile(r"\w+(\.\w+){0,2}")
_NO_OPERATORS: Final = re.compile(r"load_library|import_module|loaded_libraries|_.*")
_SCRIPT_CLASSES: Final = "__torch__"
_OF_SCRIPTS: Final = frozenset({"torch.jit._pickle", "torch._C._jit"})


@dataclass(frozen=True)
class Verdict:
    """Why a name should not be where it is, or is to be told of.

    Attributes:
        code: of the finding.
        text: what is done with what, in one sentence without its subject.
    """

    code: str
    text: str


class Judge:
    """Judges the names in the pickles of one package.

    Args:
        archive: the package.
        policy: what the loader allows beyond the built-in list.
    """

    def __init__(self, archive: Archive, policy: TrustPolicy | None) -> None:
        self._archive = archive
        self._policy = policy
        records = [name for name in archive.names() if not layout.is_internal(name)]
        self._externs = _externs(archive)
        self._index = ModuleIndex.build(records, self._externs)
        self._sources = NameSources(lru_cache(maxsize=None)(self._source_of))

    def judge(self, named: PickledName, is_script: bool = False) -> Iterator[Verdict]:
        """What speaks against a name.

        Args:
            named: the name, and what is done with it.
            is_script: whether the pickle is one of a ScriptModule, which torch's C++ code reads.
        """
        if is_script and _is_of_script(named.module):
            return
        if self._is_allowed(named.module, named.name):
            return
        if not self.is_own(named.module):
            yield from self._judge_foreign(named.module, named.name, named.use, str(named), "")
            return
        for outside in self._sources.outside(named.module, named.name):
            if not self._is_allowed(outside.module, outside.name):
                via = f" (as {named})"
                full = ".".join(filter(None, (outside.module, outside.name)))
                yield from self._judge_foreign(outside.module, outside.name, named.use, full, via)

    def is_own(self, module: str) -> bool:
        """Whether a module path leads to code of the package, or to a folder of it."""
        entry = self._index.find(module)
        return entry is not None and entry.is_own

    def _judge_foreign(
        self, module: str, name: str, use: NameUse, full: str, via: str
    ) -> Iterator[Verdict]:
        if module == _OPERATORS:
            if not _OPERATOR.fullmatch(name) or _NO_OPERATORS.fullmatch(name.partition(".")[0]):
                yield Verdict("pickle-unknown-global", f"names {full}{via}")
            elif use is not NameUse.HELD:
                yield Verdict("pickle-call", f"calls {full}{via}")
        elif self._is_known(module, name):
            if use is NameUse.CALLED and not self._may_be_called(module, name):
                yield Verdict("pickle-call", f"calls {full}{via}")
        elif is_standard(module) or self._is_restricted or not self._is_extern(module):
            yield Verdict("pickle-unknown-global", f"{_verb(use)} {full}{via}")
        elif use is NameUse.CALLED:
            yield Verdict("pickle-extern-call", f"calls {full}{via}")
        else:
            yield Verdict("pickle-extern-name", f"{_verb(use)} {full}{via}")

    def _is_known(self, module: str, name: str) -> bool:
        """Whether it is on the list; ``c`` of ``a.b`` may be written as ``b.c`` of ``a``."""
        return any(is_known(*each) for each in _spellings(module, name))

    def _may_be_called(self, module: str, name: str) -> bool:
        return any(may_be_called(*each) for each in _spellings(module, name))

    def _is_allowed(self, module: str, name: str) -> bool:
        policy = self._policy
        if policy is None or policy.pickle_globals is None:
            return False
        return policy.allows_global(module, name)

    @property
    def _is_restricted(self) -> bool:
        """Whether a policy lists what else may be named: then being extern is not enough."""
        return self._policy is not None and self._policy.pickle_globals is not None

    def _is_extern(self, module: str) -> bool:
        entry = self._index.find(module)
        is_declared = entry is not None and entry.kind is EntryKind.EXTERN
        return is_declared or (
            not self._index.keeps(module) and root_of(module) in self._index.extern_roots
        )

    def _source_of(self, module: str) -> tuple[bytes, bool] | None:
        if not self.is_own(module):
            return None
        for is_package in (True, False):
            record = module_record(module, is_package)
            if self._archive.has(record):
                return self._archive.read(record), is_package
        return b"", True


def _externs(archive: Archive) -> Mapping[str, str | None]:
    return dict.fromkeys(read_externs(archive))


def _is_of_script(module: str) -> bool:
    return root_of(module) == _SCRIPT_CLASSES or module in _OF_SCRIPTS


def _spellings(module: str, name: str) -> Iterator[tuple[str, str]]:
    """A name as it stands, and as it might be meant if its first part is a module."""
    yield module, name
    first, _, rest = name.partition(".")
    if rest and first[:1].islower() and is_known(f"{module}.{first}", ""):
        yield f"{module}.{first}", rest


def _verb(use: NameUse) -> str:
    return {
        NameUse.HELD: "holds",
        NameUse.BUILT: "makes an instance of",
        NameUse.CALLED: "calls",
    }[use]
