"""Equality of two values: exact if both are rational, else with a thousand digits.

Values with a thousand digits are equal if they agree to 690 digits. All intermediate values lie
between 1e-300 and 1e300 in size, so no difference that so short a formula can express is smaller.
Formulas with letters are compared at points derived from the letters' names, and must agree
wherever both have a value: different formulas agree at random points with probability near 0.
Letters in a factorial or binomial coefficient are whole numbers, and so is n in (-1)^n. Step
functions are also compared far out and on both sides of each jump. `log` without a base has an
unknown base, f is unknown.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

from mpmath.ctx_mp import MPContext

from .tree import Node, walk

_MP = MPContext()  # own context: leaves mpmath's global precision alone, in all threads
_MP.dps = 1000
_SAME = _MP.mpf(10) ** -690
_NOTHING, _SMALLEST, _LARGEST = (_MP.mpf(10) ** power for power in (-650, -300, 300))
_BESIDE = _MP.mpf(10) ** -99
_BITS = 20_000  # most bits of an exact number
_NO_LETTERS = frozenset("i e pi infty emptyset bbR bbZ bbN bbQ bbC".split())
_NOWHERE: Mapping[str, Any] = {}
_POINTS, _WHOLE_POINTS, _FAR_POINTS, _ENOUGH = 16, 96, 36, 3
_WHOLE = frozenset("ijklmnpqKLMN")  # letters that stand for whole numbers in a step function
_LEAVES_REALS = ("root", "^", "call")
_OUTSIDE, _NONE = object(), object()
_LARGEST_FACTORIAL = 170


class _Undefined(ArithmeticError):  # noqa: N818 - not an error: there is no value
    """A value does not exist, or is too large or too small to be distinguished from others."""


class _Outside(ArithmeticError):  # noqa: N818
    """A formula has no real value for real letters, such as a root or logarithm of -2."""


def same_value(a: Node, b: Node) -> bool:
    """Whether two values are equal; False also if that cannot be decided."""
    exact = exact_value(a), exact_value(b)
    if None not in exact:
        return exact[0] == exact[1]
    return ratio(a, b, lambda x, y: x - y) == 0


def ratio(a: Node, b: Node, of: Callable[[Any, Any], Any]) -> Any:
    """The value of `of`(a, b), if it is the same wherever both are defined; else None."""
    letters = symbols(a) | symbols(b)
    agreed: list[tuple[Any, Any]] = []
    for at in _points(a, b, letters):
        pair = [_value_or_reason(node, at) for node in (a, b)]
        outside = pair.count(_OUTSIDE)
        if _NONE in pair or outside == 2:
            continue
        if outside:
            return None  # only one has a real value here
        try:
            found, size = of(*pair), max(1, *map(abs, pair))
        except (ArithmeticError, ValueError):
            continue
        agreed.append((found, size))
        if abs(found - agreed[0][0]) > _SAME * max(size, agreed[0][1]):
            return None
    if len(agreed) < (_ENOUGH if letters else 1):
        return None
    value, size = agreed[0]
    return 0 if abs(value) <= _SAME * size else value


def _value_or_reason(node: Node, at: Mapping[str, Any]) -> Any:
    try:
        return value_at(node, at)
    except _Outside:
        return _OUTSIDE
    except (ArithmeticError, ValueError, TypeError):
        return _NONE


def real_value(node: Node) -> int | None:
    """The value of a real number without letters, in units of 10^-650; or None."""
    value = None if symbols(node) else _value_or_reason(node, _NOWHERE)
    if value is None or value is _OUTSIDE or value is _NONE or _MP.im(value) != 0:
        return None
    return int(_MP.nint(_MP.re(value) / _NOTHING))


def affine(node: Node, letter: str) -> tuple[Fraction, Fraction] | None:
    """Start and slope of a formula that is linear in its only letter, or None."""
    places = (0, 1, 2, 3, -5, Fraction(1, 7))
    start, *rest = (exact_value(node, {letter: Fraction(place)}) for place in places)
    if start is None or rest[0] is None:
        return None
    slope = rest[0] - start
    lies = all(y == start + slope * x for x, y in zip(places[1:], rest, strict=True))
    return (start, slope) if lies else None


def _points(a: Node, b: Node, letters: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Points at which two values are compared: a value for each letter."""
    both = Node("", (a, b))
    stepped = _letters_in(both, ("floor", "ceil"))
    counted = _letters_in(both, ("!", "binom")) | (stepped & _WHOLE and letters & _WHOLE)
    counted = sorted(counted | _exponents_of_negatives(both) & _WHOLE)
    for point in range(_WHOLE_POINTS if counted else _POINTS if letters else 1):
        # every other point is far out, to distinguish |x - 5| from 5 - x
        at = {name: _sample(name, point) * (100 if point % 2 else 1) for name in letters}
        whole = {name: _whole_at(name, point, name == counted[0]) for name in counted}
        if not stepped or min(whole.values(), default=1) > 0:  # counts are positive
            yield at | whole
    if letters and not counted and (stepped or _letters_in(both, ("abs",))):
        for point in range(_FAR_POINTS):
            yield {name: _sample(name, point) * 10 ** (point % 12 - 3) for name in letters}
    if not stepped:
        return
    for point in range(_FAR_POINTS if counted else _WHOLE_POINTS):
        near = {name: _near_jump(name, point) for name in letters}
        yield near | {name: _whole_far(name, point) for name in counted}
    for name in letters if len(letters) == 1 else ():
        for place, beside in product(sorted(set(_jumps(both, name))), (0, _BESIDE, -_BESIDE)):
            if not counted:
                yield {name: _MP.mpf(place.numerator) / place.denominator + beside}
            elif place > 1:
                yield {name: _MP.mpf(math.floor(place) + _MP.sign(beside))}


def _jumps(node: Node, letter: str) -> Iterator[Fraction]:
    """Places where step functions with linear arguments jump."""
    steps = (part for part in walk(node) if part.value in ("floor", "ceil"))
    for line in (affine(step.parts[0], letter) for step in steps):
        if line is not None and line[1]:
            yield from ((level - line[0]) / line[1] for level in range(-2, 4))


def symbols(node: Node) -> frozenset[str]:
    """The letters of a value, without i, e, pi, infinity and named sets."""
    return frozenset(part.value for part in walk(node) if part.kind == "symbol") - _NO_LETTERS


def exact_value(node: Node, at: Mapping[str, Fraction] = _NOWHERE) -> Fraction | None:
    """Exact value of a formula with only numbers, + - * / and whole powers; or None."""
    if node.kind in ("number", "symbol"):
        return node.value if node.kind == "number" else at.get(node.value)
    rule = _EXACT.get(node.kind)
    parts = [exact_value(part, at) for part in node.parts] if rule else []
    if rule is None or None in parts:
        return None
    try:
        value = rule(*parts)
    except ZeroDivisionError:
        return None
    return value if value is None or _size(value) <= _BITS else None


def _size(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _whole_power(base: Fraction, power: Fraction) -> Fraction | None:
    if power.denominator != 1 or _size(base) * abs(power) > _BITS or (not base and power <= 0):
        return None
    return base**power.numerator


_EXACT: dict[str, Callable[..., Fraction | None]] = {
    "+": lambda *parts: sum(parts, Fraction(0)),
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "-": lambda a: -a,
    "%": lambda a: a / 100,
    "^": _whole_power,
    "abs": abs,
}


@lru_cache(maxsize=4096)  # bounded: a model chooses the names
def _drawn(name: str, point: int) -> bytes:
    return hashlib.sha256(f"{name} {point}".encode()).digest()


def _sample(name: str, point: int) -> Any:
    """Sample value of a letter: between -4 and 4, to 48 digits."""
    return _MP.mpf(int.from_bytes(_drawn(name, point)[:20], "big")) / 2**157 - 4


def _whole_at(name: str, point: int, first: bool) -> Any:
    """Sample value of a letter in a factorial; also negative, as (n^2)! has a value there."""
    digest = _drawn(name, point)
    if first:
        return _MP.mpf(point - 8 if point < 56 else 48 + digest[0] % 119)
    within = (4, 12, 40, 167)[digest[1] % 4]  # also small: in binom(n, k) k <= n, and n may be 5
    return _MP.mpf((digest[0] % within) * (1 if digest[2] % 8 else -1))


def _near_jump(name: str, point: int) -> Any:
    """Sample value of a letter in a step function: a fraction, or right beside one."""
    digest = _drawn(name, point)
    beside = (0, _BESIDE, -_BESIDE)[point % 3]
    return _MP.mpf(digest[0] % 41 - 20) / (1, 1, 1, 2, 2, 3, 4, 5)[digest[1] % 8] + beside


def _whole_far(name: str, point: int) -> Any:
    """Sample value, far from 0, of a whole number in a step function."""
    digest = _drawn(name, point)
    return _MP.mpf((1 + digest[0]) * 10 ** (point % 9) + digest[1] % 3 - 1)


def _letters_in(node: Node, kinds: Sequence[str]) -> frozenset[str]:
    found = (part for part in walk(node) if part.kind in kinds or part.value in kinds)
    return frozenset().union(*map(symbols, found))


def _exponents_of_negatives(node: Node) -> frozenset[str]:
    """The letters in exponents of negative numbers, such as n in (-1)^n."""
    powers = (part.parts for part in walk(node) if part.kind == "^")
    found = (symbols(power) for base, power in powers if (exact_value(base) or 0) < 0)
    return frozenset().union(*found)


def value_at(node: Node, at: Mapping[str, Any]) -> Any:
    """The value at a point; raises `_Undefined` if there is none or its size is out of range."""
    parts = [value_at(part, at) for part in node.parts]
    if node.kind == "number":
        value = _MP.mpf(node.value.numerator) / node.value.denominator
    elif node.kind == "symbol":
        value = at.get(node.value, _CONSTANTS.get(node.value))
        _require(value is not None)
    elif node.kind in ("call", "opaque"):
        bound = _LARGEST_ARGUMENT.get(node.value, math.inf)
        _require(all(abs(part) <= bound for part in parts))
        known = node.kind == "call"
        value = _FUNCTIONS[node.value](*parts) if known else _unknown(node.value, *parts)
    elif node.kind == "^":
        value = _odd_root(parts[0], exact_value(node.parts[1])) or _power(*parts)
    else:
        _require(node.kind in _ARITHMETIC)
        value = _ARITHMETIC[node.kind](*parts)
    size = abs(value)
    imaginary = _MP.im(value) != 0 and node.kind in _LEAVES_REALS and not any(map(_MP.im, parts))
    if imaginary and symbols(node):
        raise _Outside(node.kind)
    _require(size < _LARGEST and not _NOTHING < size < _SMALLEST)
    return value


def _require(condition: object) -> None:
    if not condition:
        raise _Undefined


_CONSTANTS = {"i": _MP.mpc(0, 1), "e": _MP.exp(1), "pi": +_MP.pi}


def _power(base: Any, power: Any) -> Any:
    size = abs(base)
    if size <= _NOTHING:
        _require(_MP.im(power) == 0 and _MP.re(power) > 0)
        return _MP.mpf(0)
    _require(abs(power) * (abs(_MP.mag(size)) + 1) <= _BITS)
    return base**power


def _odd_root(base: Any, power: Fraction | None) -> Any:
    """The real odd root of a negative base: (-8)^(1/3) is -2; None for other bases and powers."""
    if power is None or power.denominator % 2 == 0 or power.denominator == 1:
        return None
    if _MP.im(base) != 0 or _MP.re(base) >= 0:
        return None
    sign = -1 if power.numerator % 2 else 1
    return sign * _power(-base, _MP.mpf(power.numerator) / power.denominator)


def _root(radicand: Any, index: Any = 2) -> Any:
    if _MP.im(radicand) == 0 and _MP.re(radicand) < 0 and index in (3, 5, 7, 9):
        return -_power(-radicand, 1 / _MP.mpf(index))  # the real root
    _require(_MP.im(index) == 0 and 1 < _MP.re(index) < 100)
    return _power(radicand, 1 / _MP.mpf(_MP.re(index)))


def _over(a: Any, b: Any) -> Any:
    _require(abs(b) > _NOTHING)
    return a / b


def _natural(n: Any) -> int:
    _require(_MP.im(n) == 0 and _MP.isint(n) and 0 <= n <= _LARGEST_FACTORIAL)
    return int(n)


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": lambda *parts: _MP.fsum(parts),
    "*": lambda a, b: a * b,
    "/": _over,
    "-": lambda a: -a,
    "%": lambda a: a / 100,
    "root": _root,
    "abs": abs,
    "!": lambda n: _MP.factorial(_natural(n)),
    "degree": lambda: _MP.pi / 180,
}


_LARGEST_ARGUMENT = {
    **dict.fromkeys("sin cos tan cot sec csc".split(), 1e6),
    **dict.fromkeys("exp sinh cosh tanh".split(), 690),
}


def _real(x: Any) -> Any:
    """A real number, rounded to a whole number if within rounding error of it."""
    _require(_MP.im(x) == 0)
    nearest = _MP.nint(_MP.re(x))
    return nearest if abs(x - nearest) < _NOTHING else x


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arcsin": _MP.asin,
    "arccos": _MP.acos,
    "arctan": _MP.atan,
    "ln": _MP.log,
    "log": lambda x, *base: (
        _MP.log(x) / _MP.log(*base) if base else _MP.log(x) * _sample("base of log", 0)
    ),
    "lg": lambda x: _MP.log(x) / _MP.log(10),
    "binom": lambda n, k: _MP.binomial(_natural(n), _natural(k)),
    "floor": lambda x: _MP.floor(_real(x)),
    "ceil": lambda x: _MP.ceil(_real(x)),
    **{name: getattr(_MP, name) for name in _LARGEST_ARGUMENT},
}


def _unknown(name: str, *arguments: Any) -> Any:
    """A stand-in for an unknown function, determined by its name."""
    terms = [x * _sample(name, place + 100) for place, x in enumerate(arguments)]
    return _MP.sin(_MP.fsum(terms) + _sample(name, 99)) + _MP.fsum(terms) ** 3
