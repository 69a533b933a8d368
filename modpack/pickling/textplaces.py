"""Where texts hang in an object: the attribute paths of strings that contain them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType

from modpack.pickling.paths import with_paths

__all__ = ["places_of_texts"]


def places_of_texts(root: object, texts: Sequence[bytes], name: str) -> dict[bytes, str]:
    """The shortest path to a string, to bytes, or to a function's source that has a text in it.

    Runs no code of the object's, like :func:`modpack.pickling.paths.path_to`.

    Args:
        root: the object.
        texts: what to look for.
        name: what to call the object.

    Returns:
        The paths of those that were found. A path never spells one of the texts.

    >>> places_of_texts({"login": ["anna", "my s3cret"]}, [b"s3cret"], "obj")
    {b's3cret': "obj['login'][1]"}
    """
    found: dict[bytes, str] = {}
    for obj, path in with_paths(root, name):
        for held, place in _texts_of(obj, path):
            for text in texts:
                if text in held:
                    found.setdefault(text, _without(place, texts))
        if len(found) == len(texts):
            break
    return found


def _texts_of(obj: object, path: str) -> Iterator[tuple[bytes, str]]:
    if type(obj) is str:
        yield obj.encode("utf-8", "replace"), path
    elif type(obj) is bytes:
        yield obj, path
    elif type(obj) is FunctionType:
        code = obj.__code__
        for held in _constants(code):
            yield held, f"{code.co_filename}:{code.co_firstlineno}"


def _constants(code: CodeType) -> Iterator[bytes]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants(constant)
        elif isinstance(constant, (str, bytes)):
            yield constant.encode("utf-8", "replace") if isinstance(constant, str) else constant


def _without(path: str, texts: Sequence[bytes]) -> str:
    """A path that says where a text is, and not what it is: the text may be a key itself."""
    for text in texts:
        path = path.replace(text.decode("utf-8", "replace"), "...")
    return path
