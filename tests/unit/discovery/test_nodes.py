"""What is below a syntax node, told faster than the standard library tells it."""

from __future__ import annotations

import ast
import inspect

import pytest

from modpack.discovery import data_files as _places
from modpack.discovery import import_scanner as _collect
from modpack.discovery import syntax as _nodes

EVERYTHING = """
import a.b as c
from . import d
@deco(1)
async def f(x: int, /, y=1, *args, z, w=2, **rest) -> str:
    global g
    async with a as b, c: pass
    async for i in x: await i
    return {**x, "k": [*y], 1: {2, 3}}
class C(B, metaclass=M):
    x: int = 1
    y: str
    z += ~1 if not (x and y or 2) else -3
try:
    raise E from None
except (A, B) as e:
    del x[1:2, ...], y.z
except:
    assert x, f"{x!r:>{w}} and {y}"
else:
    lambda q=1, *r: (yield q)
finally:
    while a < b <= c is not d: break
    else: continue
match x:
    case [1, *rest] | {"a": A(b=1, c=None), **more} if (n := 1): pass
    case -1 | a.b | _: pass
for i, (j, *k) in [x async for x in y if x for z in x]: print(*i, **j)
"""
LEFT_OUT = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
SOURCES = [EVERYTHING, *map(inspect.getsource, (_collect, _nodes, _places))]


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_nodes_in_the_same_order_short_of_operators_and_contexts(source):
    tree = ast.parse(source)
    nodes = [node for node in ast.walk(tree) if not isinstance(node, LEFT_OUT)]
    assert list(_nodes.nodes_in(tree)) == nodes
    for node in nodes:
        below = [each for each in ast.iter_child_nodes(node) if not isinstance(each, LEFT_OUT)]
        assert _nodes.child_nodes(node) == below


def test_a_node_made_by_hand_may_lack_fields():
    assert _nodes.child_nodes(ast.Return()) == []
