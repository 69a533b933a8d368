"""Reproducible archives of ScriptModules and exported programs, written by torch.

Graphs and code record the source lines that they come from, with the folders of this machine. A
package records the path of the module instead, such as ``nets/layers.py``, or nothing.
``torch.jit.save`` also numbers a class if the process has compiled another one with its name;
modpack renumbers these classes.
"""

from __future__ import annotations

import io
import re
import sys
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from modpack.archive import layout
from modpack.saving.pickle_edits import global_opcode, iter_opcodes, text_opcode

# Texts, because few models have graphs, and each save imports this module.
_FILE = r'(File \\*")([^"\\]+)'
_TRACES = "_graphmodule_graph_node_meta_stack_trace"
"""The entry of a GraphModule's saved state with the source line of each node."""
# Source lines with the folders of this machine. torch loads archives without them.
_DEBUG = ".debug_pkl"
"""A digest of the archive's content that torch logs but does not check."""

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_MANGLED = r"___torch_mangle_\d+\."
_NAME = r"\b__torch__(?:\.\w+)+"
_DEFINITION = r"(?:class|def) (\w+)[(:]"


def portable_path(file: str) -> str:
    """Return a module's file as a path below the folder that it was imported from.

    >>> portable_path(re.__file__), portable_path("/home/me/unknown.py")
    ('re/__init__.py', 'unknown.py')
    """
    return _file_label(_by_file(), file)


def portable_trace(text: str) -> str:
    """Make the file names in a text of traceback lines portable; see :func:`portable_path`."""
    known = _by_file()
    return re.sub(_FILE, lambda found: found[1] + _file_label(known, found[2]), text)


def without_folders(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an object's ``__reduce_package__`` result with portable source lines of graphs."""
    function, arguments = parts
    state = arguments[0] if arguments else None
    if type(state) is not dict or not state.get(_TRACES):
        return parts
    traces = {node: portable_trace(trace) for node, trace in state[_TRACES].items()}
    return function, ({**state, _TRACES: traces}, *arguments[1:])


def _file_label(known: Mapping[str, str], file: str) -> str:
    return known.get(file) or (Path(file).name if Path(file).is_absolute() else file)


def _by_file() -> dict[str, str]:
    """Return the portable paths of all loaded modules by their files."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        # type() and vars(): reading an attribute of a lazy module runs code.
        file = vars(module).get("__file__") if issubclass(type(module), ModuleType) else None
        if isinstance(file, str) and name != "__main__":
            count = name.count(".") + (2 if Path(file).stem == "__init__" else 1)
            found.setdefault(file, "/".join(Path(file).parts[-count:]))
    return found


def program_bytes(program: Any) -> bytes:
    """Return the output of :func:`torch.export.save` for a program, without folders."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    records = _records(buffer)
    for name in records:
        if name.endswith(".json"):
            records[name] = portable_trace(records[name].decode()).encode()
    return _archive(records)


def script_bytes(module: torch.jit.ScriptModule) -> bytes:
    """Return the output of torch.jit.save for a module, the same in every process."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    return _archive(_with_canonical_names(_records(buffer)))


def _records(file: io.BytesIO) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        names = [n for n in archive.namelist() if not n.endswith((_DEBUG, layout.SERIALIZATION_ID))]
        return {name: archive.read(name) for name in names}


def _archive(records: Mapping[str, bytes]) -> bytes:
    """Return an uncompressed archive of records with a fixed date."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in records.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_EPOCH), content)
    return buffer.getvalue()


def _with_canonical_names(records: dict[str, bytes]) -> dict[str, bytes]:
    """Return the records with the class names that a fresh process would choose."""
    code = {
        name: text
        for name, text in records.items()
        if name.partition("/")[2].startswith("code/") and name.endswith(".py")
    }
    definitions = {full: text for name in code for full, text in _definitions(name, code[name])}
    pickles = {n: c for n, c in records.items() if n.endswith(".pkl")}
    # Names that are changed in one place only would break the archive, so all of them stay.
    if not _are_whole(code, definitions):
        return records
    names = _renamed(_in_order(pickles, definitions))
    changed = {
        name: _with_names_in_pickle(content, names) if name in pickles else content
        for name, content in records.items()
        if name not in code
    }
    folder = next(iter(records)).partition("/")[0]
    return {**changed, **_written(folder, definitions, names)}


def _definitions(record: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the definitions in a code file with their full names."""
    module = record.partition("/code/")[2].removesuffix(".py").replace("/", ".")
    for block in re.split(r"^(?=\S)", content.decode(), flags=re.MULTILINE):
        found = re.match(_DEFINITION, block)
        yield f"{module}.{found[1] if found else ''}", block


def _are_whole(code: Mapping[str, bytes], definitions: Mapping[str, str]) -> bool:
    """Return whether the code consists of uniquely named definitions only."""
    size = sum(len(content.decode()) for content in code.values())
    is_known = all(full.rpartition(".")[2] or not text for full, text in definitions.items())
    return is_known and sum(map(len, definitions.values())) == size


def _in_order(pickles: Mapping[str, bytes], definitions: Mapping[str, str]) -> list[str]:
    """Return the names of all definitions in the order of their first use."""
    named = [
        argument.replace(" ", ".")
        for content in pickles.values()
        for opcode, argument, _ in iter_opcodes(content)
        if opcode == "GLOBAL"
    ]
    found: dict[str, None] = {}
    for begun in (named, *([name] for name in sorted(definitions))):  # the rest last
        todo = deque(begun)
        while todo:
            name = todo.popleft()
            if name in definitions and name not in found:
                found[name] = None
                used = re.findall(_NAME, definitions[name])
                todo.extend(_defined(each, definitions) for each in used)
    return list(found)


def _defined(used: str, definitions: Mapping[str, object]) -> str:
    """Return the definition that a dotted name starts with, or an empty string."""
    while used and used not in definitions:
        used = used.rpartition(".")[0]
    return used


def _renamed(names: list[str]) -> dict[str, str]:
    """Return new names: the first class of a name keeps it, the others are numbered."""
    taken: set[str] = set()
    renamed: dict[str, str] = {}
    for name in names:
        plain = re.sub(_MANGLED, "", name)
        module, _, own = plain.rpartition(".")
        number = len(renamed) - len(taken)
        renamed[name] = f"{module}.___torch_mangle_{number}.{own}" if plain in taken else plain
        taken.add(plain)
    return renamed


def _written(
    folder: str, definitions: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the code files, with the definitions under their new names."""
    texts: dict[str, list[str]] = {}
    for old, new in names.items():
        file = new.rpartition(".")[0].replace(".", "/")
        texts.setdefault(f"{folder}/code/{file}.py", []).append(
            _with_names(definitions[old], names)
        )
    return {name: "".join(parts).encode() for name, parts in texts.items()}


def _with_names(text: str, names: Mapping[str, str]) -> str:
    def changed(found: re.Match[str]) -> str:
        known = _defined(found[0], names)
        return names.get(known, "") + found[0][len(known) :]

    return re.sub(_NAME, changed, text)


def _with_names_in_pickle(content: bytes, names: Mapping[str, str]) -> bytes:
    """Rename the classes in a pickle that torch wrote (protocol 2)."""
    pieces = []
    found = list(iter_opcodes(content))
    for index, (opcode, argument, piece) in enumerate(found):
        if opcode == "GLOBAL":
            module, _, own = names.get(argument.replace(" ", "."), "").rpartition(".")
            piece = global_opcode(module, own) if own else piece
        elif opcode == "BINUNICODE":
            # The last argument of a call may be the type name of a container.
            after = [name for name, *_ in found[index + 1 : index + 4]]
            call = [name for name in after if not name.endswith("BINPUT")][:2]
            if call in (["TUPLE2", "REDUCE"], ["TUPLE", "REDUCE"]):
                piece = text_opcode(_with_names(argument, names))
        pieces.append(piece)
    return b"".join(pieces)
