"""LeetCode's linked lists and trees, which tests write as lists: level by level, null for none.

[1, 2] becomes `head: Optional[ListNode]`, [1, null, 2] becomes `root: Optional[TreeNode]`. Other
values are passed unchanged.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

KINDS = ("ListNode", "TreeNode")
_LIST = re.compile(r"\b[Ll]ist\[")


def called(function: Callable[..., Any], arguments: list[Any], classes: dict[str, Any]) -> Any:
    """Call a function; returns its result, or for `-> None` the first argument; nodes as lists.

    `classes` has the program's `ListNode` and `TreeNode`.
    """
    said = {k: str(kind) for k, kind in getattr(function, "__annotations__", {}).items()}
    result = said.pop("return", "")
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    names = [n for n in (code.co_varnames[: code.co_argcount] if code else ()) if n != "self"]
    texts = [said.get(name, "") for name in names] + [""] * len(arguments)
    given = [_made(value, text, classes) for value, text in zip(arguments, texts, strict=False)]
    value = function(*given)
    if value is None and result in ("None", "<class 'NoneType'>") and given:
        value, result = given[0], texts[0]
    return _told(value, result)


def _kind(text: str) -> str | None:
    return next((kind for kind in KINDS if kind in text), None)


def _made(value: Any, text: str, classes: dict[str, Any]) -> Any:
    """Convert a test's value to the parameter's kind of node, or to a list of nodes."""
    kind = _kind(text)
    if kind is None or not (value is None or isinstance(value, list)):
        return value
    of_one, several = _LIST.subn("", text, count=1)
    if several:
        return [_made(one, of_one, classes) for one in value or ()]
    return (_list if kind == "ListNode" else _tree)(value or [], classes[kind])


def _list(values: list[Any], node: Any) -> Any:
    head = None
    for value in reversed(values):
        before = head
        head = node(value)
        head.next = before
    return head


def _tree(values: list[Any], node: Any) -> Any:
    nodes = [None if value is None else node(value) for value in values]
    children = iter(nodes[1:])
    for one in nodes:
        if one is not None:
            one.left, one.right = next(children, None), next(children, None)
    return nodes[0] if nodes else None


def _told(value: Any, text: str) -> Any:
    """Convert a result to a test's form; None, if annotated as a node, becomes the empty list."""
    name = type(value).__name__
    if isinstance(value, list) and any(type(one).__name__ in KINDS for one in value):
        return [_told(one, "") for one in value]
    if value is None and _kind(text):
        return []
    values: list[Any] = []
    if name == "ListNode":
        while value is not None:
            values.append(value.val)
            value = value.next
        return values
    if name != "TreeNode":
        return value
    level = deque([value])
    while level:
        one = level.popleft()
        values.append(None if one is None else one.val)
        if one is not None:
            level += (one.left, one.right)
    while values and values[-1] is None:
        values.pop()
    return values
