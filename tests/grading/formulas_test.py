r"""What models write in a box, and the verdict that mathematics gives, decided by hand.

Wrong answers are close to the right ones: what a reader that takes a function for a product, or a
set for its condition, would accept.
"""

from __future__ import annotations

import pytest

from entrostat.grading.mathematics import equal

MATRIX = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (r"I(0) e^{-\frac{t}{RC}}", "I(0)e^{-t/(RC)}"),
        (r"\frac12\Gamma\left(\frac14\right)", r"\frac{\Gamma(1/4)}{2}"),
        (r"\zeta(3)+\zeta(3)", r"2\zeta(3)"),
        ("y = 2t", "y(t) = 2t"),
        ("3x^2", "P_2(x) = 3x^2"),
        ("2x", "f'(x) = 2x"),
        ("n^2 + n", "n(n + 1)"),  # a product
        (r"\sqrt{2}a - a", r"a(\sqrt{2} - 1)"),
        ("-2a", "a(3-5)"),
    ],
)
def test_letters_before_a_bracket_are_functions_of_what_is_in_it(expected: str, given: str) -> None:
    assert equal(expected, given)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (r"I(0) e^{-\frac{t}{RC}}", "0"),  # I times 0
        (r"\Gamma(\frac14)", r"\frac12\Gamma(\frac12)"),  # each is Gamma/4 as a product
        (r"\zeta(3/2)", r"\frac{\zeta(3)}{2}"),
        ("J_0(2x)", "2J_0(x)"),
        ("u(2t)", "2u(t)"),
        (r"W(\ln 4)", r"2W(\ln 2)"),
        ("y(0) = 1", "y(0) = 2"),
        ("u(1) = 3", "u(2) = 6"),
        ("f(x) = 2x", "f(n) = 2x"),
        (r"\frac{C}{x}", "y(x) = C"),
    ],
)
def test_functions_are_not_products(expected: str, given: str) -> None:
    assert not equal(expected, given)
