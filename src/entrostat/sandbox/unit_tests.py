"""Sources of tests: what of them runs, whether that tells a right program from none; LeetCode's."""

from __future__ import annotations

import ast
import sys
import threading
import warnings
from collections.abc import Iterator

_KNOWN = sys.stdlib_module_names | {"solution"}  # what tests may import
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINES = (*_FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)
_building = threading.Lock()
_TELLS = (ast.Assert, ast.Raise, ast.Call)


def split(source: str) -> list[str]:
    """A source of tests as sources that raise where a test fails, one for each test in it.

    Functions `test...` are called, methods `test...` of a class with its `setUp` (unittest's) or
    `setup_method` before. A source without such is a test itself.
    """
    module = parsed(source)
    found = [] if module is None else _tests(module)
    return [f"{source}\n{call}\n" for _, call in found] or [source]


def check(source: str) -> None:
    """Refuse a source of tests that cannot run here, or that runs nothing of the program."""
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
    """A source as a tree; None where it is no Python. Python 3.11 builds one tree at a time."""
    try:
        with _building, warnings.catch_warnings(action="ignore"):  # of escapes in texts, say
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _tests(module: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """The tests in a source, each with what runs it."""
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
    """Whether a test is asynchronous, or takes more than `self`: fixtures of pytest's."""
    names = {one.arg for one in function.args.args}
    return isinstance(function, ast.AsyncFunctionDef) or bool(
        names - {"self"} or function.decorator_list
    )


# what LeetCode's starter code uses without importing it, as LiveCodeBench's runner has it
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
