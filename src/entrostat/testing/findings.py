"""Comparisons whose failure message is a sentence with the values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .subject import Pass, Subject

CLOSE = {"rtol": 1e-11, "atol": 1e-12}  # for float64 sums in another order


class Broken(Exception):  # noqa: N818 - it is a finding, and becomes an AssertionError
    """A violation of a rule: a clause without a full stop."""


@dataclass(frozen=True)
class Rule:
    """One rule of the contract.

    Attributes:
        name: its name.
        says: the rule, in a sentence.
        fix: what to change if it is broken.
        look: raises `Broken` if a subject breaks it.
    """

    name: str
    says: str
    fix: str
    look: Callable[[Subject], None]


def rule(says: str, fix: str) -> Callable[[Callable[[Subject], None]], Rule]:
    """Decorator: make a function the check of a rule of its name."""
    return lambda look: Rule(look.__name__, says, fix, look)


def expect(held: bool, finding: str) -> None:
    if not held:
        raise Broken(finding)


def alike(
    what: str, got: Tensor, expected: Tensor, when: str, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Compare a tensor with another: bit for bit, or to a tolerance.

    `what` and `when` are phrases of the finding: "the loss", "with NaN at the masked places".
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise Broken(
            f"{when} {what} is {got.dtype} {list(got.shape)}, it should be {expected.dtype} "
            f"{list(expected.shape)}"
        )
    off = ~torch.isclose(got, expected, rtol=rtol, atol=atol)
    if not off.any():
        return
    if got.ndim == 0:
        raise Broken(f"{when} {what} is {figure(got)}, it should be {figure(expected)}")
    place = tuple(int(i) for i in off.nonzero()[0])
    at = "row {}, token {}".format(*place) if len(place) == 2 else f"row {place[0]}"
    raise Broken(
        f"{when} {what} at {at} is {figure(got[place])}, it should be {figure(expected[place])}; "
        f"{int(off.sum())} of {off.numel()} places differ"
    )


def figure(value: Tensor | float) -> str:
    """A number with enough digits to distinguish close values."""
    x = float(value)
    return f"{x:.10g}" if math.isfinite(x) else str(x)


def same_pass(
    got: Pass, clean: Pass, when: str, rows: Any = slice(None), exact: bool = False
) -> None:
    """Compare loss and gradients of a pass with another's, on the other's rows and columns."""
    T, close = clean.logp.shape[1], {} if exact else CLOSE
    alike("the loss", got.loss, clean.loss, when, **close)
    for name, mine, theirs in zip(LEAVES, got.gradients, clean.gradients, strict=True):
        alike(f"the gradient of {name}", mine[rows][:, :T], theirs, when, **close)
    per_token = got.out.per_token[rows][:, :T].detach()
    alike("the loss of a token", per_token, clean.out.per_token.detach(), when, **close)
    same_figures(got.figures, clean.figures, when, exact)


def same_figures(
    got: dict[str, Tensor], expected: dict[str, Tensor], when: str, exact: bool = False
) -> None:
    expect(
        got.keys() == expected.keys(),
        f"{when} the figures {sorted(got.keys() ^ expected.keys())} come or go",
    )
    for key, value in expected.items():
        alike(f"the figure {key}", got[key], value, when, **({} if exact else CLOSE))


LEAVES = ("logp", "entropy")
