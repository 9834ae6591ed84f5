"""The contract that every method keeps, for the tests of a method of your own.

    from entrostat.testing import check_method
    from my_package import Damped

    def test_damped_keeps_the_contract():
        check_method(Damped)

A rule is broken by an `AssertionError` whose one line names the rule, what was seen and what to
change. The methods of this package are held to the same rules (tests/core/contract_test.py). No
rule knows what a method is meant to compute: values worked out by hand are a test of your own.
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
    """Hold a method to the contract.

    Args:
        method: your class, registered or not; or what `make_objective` takes: a name, MODULE:NAME,
            a list of them.
        params: parameters other than its defaults, where those take another path or do nothing.
        allowed: what it does otherwise by its own definition; held to be true as well.
        rules: names of `RULES`; None checks all, in some seconds.

    Raises:
        AssertionError: one line: the method, the rule, what was seen, what to change.
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
    """Hold a method to one rule.

    Raises:
        AssertionError: it breaks it, or raises.
    """
    try:
        rule.look(subject)
        return
    except Broken as finding:
        seen, cause = str(finding), None
    except Exception as error:  # a hook's own; it is shown above, with its place
        seen, cause = f"it raises {in_one_line(error)}", error
    name = subject.spec if isinstance(subject.spec, str) else repr(subject.spec)
    raise AssertionError(
        f"{name} breaks the rule {rule.name!r}. {rule.says} But {seen}. {rule.fix}"
    ) from cause


@contextmanager
def _registered(method: Any) -> Iterator[Any]:
    """The name of a class, which has one for so long; anything else as it is.

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
