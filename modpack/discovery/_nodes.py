"""Kinds of syntax nodes that several readers treat alike."""

from __future__ import annotations

import ast
import sys

__all__ = ["COMPREHENSIONS", "FUNCTIONS", "TRIES"]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

if sys.version_info >= (3, 11):
    TRIES = (ast.Try, ast.TryStar)
else:
    TRIES = (ast.Try,)
