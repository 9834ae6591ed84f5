"""Test sources: the tests in them, a check that they test something, and LeetCode's imports."""

from __future__ import annotations

import ast
import sys
import threading
import warnings
from collections.abc import Iterator

_KNOWN = sys.stdlib_module_names | {"solution"}  # modules that tests may import
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINES = (*_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)
_building = threading.Lock()
_TELLS = (ast.Assert, ast.Raise, ast.Call)


def split(source: str) -> list[str]:
    """Split a test source into one source per test, each of which raises if its test fails.

    Functions `test...` are called, and methods `test...` of a class after its `setUp` (unittest) or
    `setup_method`. A source without either is a single test.
    """
    module = parsed(source)
    found = [] if module is None else _tests(module)
    return [f"{source}\n{call}\n" for _, call in found] or [source]


def check(source: str) -> None:
    """Raise ValueError for a test source that cannot run here, or that asserts nothing."""
    module = parsed(source)
    if module is None:
        raise ValueError("tests that are no Python")
    nodes = list(ast.walk(module))
    imported = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    imported |= {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}
    if not all(name.partition(".")[0] in _KNOWN for name in imported):
        raise ValueError("tests that need pytest or another package")
    run = [test for test, _ in _tests(module)]
    run = run or [node for node in module.body if not isinstance(node, _DEFINES)]
    if any(isinstance(test, _FUNCTIONS) and _needs_pytest(test) for test in run):
        raise ValueError("tests that need pytest or another package")
    if not any(isinstance(node, _TELLS) for test in run for node in ast.walk(test)):
        raise ValueError("tests that assert nothing")


def parsed(source: str) -> ast.Module | None:
    """Parse a source; None if it is not Python. Python 3.11 builds one tree at a time."""
    try:
        with _building, warnings.catch_warnings(action="ignore"):  # such as invalid escapes
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tests(module: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """The tests in a source, each with the code that runs it."""
    for node in module.body:
        if isinstance(node, _FUNCTIONS) and node.name.lower().startswith("test"):
            yield node, f"{node.name}()"
        elif isinstance(node, ast.ClassDef):
            unittest = any("TestCase" in ast.unparse(base) for base in node.bases)
            before = any(getattr(one, "name", "") == "setup_method" for one in node.body)
            setup = "_t.setup_method()\n" if before else ""
            for one in node.body if unittest or node.name.startswith("Test") else ():
                if isinstance(one, ast.FunctionDef) and one.name.startswith("test"):
                    plain = f"_t = {node.name}()\n{setup}_t.{one.name}()"
                    yield one, f"{node.name}({one.name!r}).debug()" if unittest else plain


def _needs_pytest(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a test is asynchronous, decorated, or takes arguments other than `self`."""
    names = {one.arg for one in function.args.args}
    return isinstance(function, ast.AsyncFunctionDef) or bool(
        names - {"self"} or function.decorator_list
    )


# names that LeetCode's starter code uses without importing them, as in LiveCodeBench's runner
LEETCODE = """
from string import *; from re import *; from datetime import *; from collections import *
from heapq import *; from bisect import *; from copy import *; from math import *
from random import *; from statistics import *; from itertools import *; from functools import *
from operator import *; from io import *; from sys import *; from json import *
from typing import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics, itertools
import functools, operator, io, sys, json, typing
sys.setrecursionlimit(50000)

class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next

class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
"""
