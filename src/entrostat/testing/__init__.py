"""The contract of every method, for the tests of your own method.

    from entrostat.testing import check_method
    from my_package import Damped

    def test_damped_keeps_the_contract():
        check_method(Damped)

A broken rule raises an `AssertionError` of one line: the rule, the finding and the fix. The methods
of this package must pass the same rules (tests/core/contract_test.py). No rule knows what a method
should compute: test values worked out by hand yourself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._names import unknown
from ..errors import in_one_line
from ..method import METHODS, register
from . import advantages, layouts, masked, order, parts
from .data import contract_data, moved
from .findings import Broken, Rule
from .subject import Added, Allowed, Pass, Subject

_ROOMS = (masked, advantages, order, parts, layouts)
RULES: dict[str, Rule] = {
    rule.name: rule for room in _ROOMS for rule in vars(room).values() if isinstance(rule, Rule)
}


def check_method(
    method: Any,
    params: Mapping[str, Any] | None = None,
    *,
    allowed: Allowed | None = None,
    rules: Iterable[str] | None = None,
) -> None:
    """Check that a method keeps the contract.

    Args:
        method: your class, registered or not; or a name, MODULE:NAME or a list, as for
            `make_objective`.
        params: parameters other than the defaults, if these take another path or have no effect.
        allowed: the method's exceptions from the rules, by definition; they are checked too.
        rules: names of `RULES`; None checks all, in some seconds.

    Raises:
        AssertionError: one line: the method, the rule, the finding, the fix.
        ValueError: no such rule, method or parameter.

    Example:
        >>> check_method("steer", {"mapping": "linear"}, rules=["masked", "layout"])
    """
    chosen = list(RULES) if rules is None else list(rules)
    for name in chosen:
        if name not in RULES:
            raise ValueError(unknown("rule", name, RULES))
    with _registered(method) as spec:
        subject = Subject(spec, params, allowed)
        for name in chosen:
            keep(subject, RULES[name])


def keep(subject: Subject, rule: Rule) -> None:
    """Check that a method keeps one rule.

    Raises:
        AssertionError: the method breaks the rule, or raises.
    """
    try:
        rule.look(subject)
        return
    except Broken as finding:
        seen, cause = str(finding), None
    except Exception as error:  # raised by a hook; the traceback above shows where
        seen, cause = f"it raises {in_one_line(error)}", error
    name = subject.spec if isinstance(subject.spec, str) else repr(subject.spec)
    raise AssertionError(
        f"{name} breaks the rule {rule.name!r}. {rule.says} But {seen}. {rule.fix}"
    ) from cause


@contextmanager
def _registered(method: Any) -> Iterator[Any]:
    """Register a class under a temporary name and return the name; return anything else unchanged.

    Raises:
        AssertionError: the class could not be registered.
    """
    if not isinstance(method, type):
        yield method
        return
    name = next((name for name, cls in METHODS.items() if cls is method), None)
    if name is not None:
        yield name
        return
    name = method.__name__
    while name in METHODS:
        name += "_"
    try:
        register(name)(method)
    except TypeError as error:
        raise AssertionError(str(error)) from None
    try:
        yield name
    finally:
        METHODS.pop(name, None)


__all__ = [
    "RULES",
    "Added",
    "Allowed",
    "Pass",
    "Rule",
    "Subject",
    "check_method",
    "contract_data",
    "keep",
    "moved",
]
