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


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("y = Ce^{2x}", "y = C e^{2x}"),
        ("Ae^x + Be^{-x}", "A e^{x} + B e^{-x}"),
        ("Ax + By + C = 0", "A x + B y + C = 0"),
        ("2x", r"\frac{dy}{dx} = 2x"),
        (r"4\pi", r"\frac{dA}{dt} = 4\pi"),
        ("5", r"\bar{x} = 5"),
        ("(1, 2)", r"\vec{v} = (1, 2)"),
        ("-5", r"-\$5"),
        (r"\{1, 2\}", "{2, 1}"),
        ("1, 2", "x \u2208 {1, 2}"),
        (MATRIX, r"\begin{pmatrix} 1 & 2 \\[4pt] 3 & 4 \end{pmatrix}"),
        (MATRIX, r"\frac12 \begin{bmatrix} 2 & 4 \\ 6 & 8 \end{bmatrix}"),
        (MATRIX, r"-\begin{pmatrix} -1 & -2 \\ -3 & -4 \end{pmatrix}"),
    ],
)
def test_notations_of_one_answer(expected: str, given: str) -> None:
    assert equal(expected, given)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        ("Ae^x + Be^{-x}", "A e^{x} - B e^{-x}"),
        ("Bob = 5", "Ann = 5"),
        (r"\frac{y}{x}", r"\frac{dy}{dx}"),
        (r"\frac{dy}{dx} = 2x", r"\frac{dx}{dy} = 2x"),
        (r"\bar{y} = 5", r"\bar{x} = 5"),
        (r"-\$5", r"\$5"),
        ("(1, 2)", "{1, 2}"),
        ("{1, 2}", "{1, 2, 3}"),
        (MATRIX, r"\frac12 \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
        (MATRIX, r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}^{-1}"),
        (MATRIX, r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}"),
    ],
)
def test_notations_of_other_answers(expected: str, given: str) -> None:
    assert not equal(expected, given)
