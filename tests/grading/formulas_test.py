r"""What models write in a box, and the verdict that mathematics gives, decided by hand.

Wrong answers are close to the right ones: what a reader that takes a function for a product, or a
set for its condition, would accept.
"""

from __future__ import annotations

import pytest

from entrostat.grading import final_answer, grade_here
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


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        (r"\frac{(-1)^{n-1}}{n}", r"\frac{(-1)^{n+1}}{n}", True),
        ("(-2)^n", "(-1)^{n}2^{n}", True),
        (r"\frac{2^{n}+(-1)^{n+1}}{3}", r"\frac{2^n-(-1)^n}{3}", True),
        ("1", "(-1)^{n(n+1)}", True),  # n(n+1) is even
        ("(-1)^{n+1}", "(-1)^n", False),
        ("(-1)^{n(n-1)/2}", "(-1)^{n(n+1)/2}", False),
        ("(-2)^n", "-2^n", False),
        ("1", "(-1)^x", False),
    ],
)
def test_powers_of_negative_numbers_have_whole_exponents(
    expected: str, given: str, same: bool
) -> None:
    assert equal(expected, given) == same


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        (r"n \cdot 2^{n-1}", "n2^{n-1}", True),
        (r"(n-1) \cdot 2^n", "(n-1)2^{n}", True),
        (r"n \cdot 2^{n-1}", "n2^{n}", False),
        ("32^n", "3 2^n", False),
        (r"3 \cdot 2^n", "3 2^n", False),
        ("2x", "x2", False),
    ],
)
def test_a_power_of_a_number_may_be_a_factor(expected: str, given: str, same: bool) -> None:
    assert equal(expected, given) == same


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        (r"(3,\infty)", r"\{x \mid x > 3\}", True),
        (r"(-\infty,2) \cup (2,\infty)", r"\{x \in \mathbb{R} : x \ne 2\}", True),
        ("(1, 2]", "{x | 1 < x \u2264 2}", True),
        ("(1, 2)", r"\{x \mid 1 < x < 2\}", True),
        (r"(-\infty,1) \cup (2,\infty)", r"\{x \mid x < 1 \text{ or } x > 2\}", True),
        ("[1, 2]", r"\{x \mid 1 < x \le 2\}", False),
        ("(3, 2)", r"\{x \mid 2 < x < 3\}", False),
        (r"(3,\infty)", r"\{x \in \mathbb{Z} \mid x > 3\}", False),
        ("3", r"\{x \mid x = 3\}", False),
    ],
)
def test_sets_by_a_condition(expected: str, given: str, same: bool) -> None:
    assert equal(expected, given) == same


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        ("If order mattered, the answer would be \\boxed{84}.", "84", 0),
        ("\\boxed{42}\n\nNote: if n were odd, we would get \\boxed{84}.", "84", 0),
        ("So the answer would be \\boxed{84}.", "84", 1),
        ("**Answer:** The value of \\(x\\) is \\(\\frac{3}{4}\\).", "3/4", 1),
        ("Answer: \\(x\\) is at most \\(5\\)", "5", 0),
        ("Answer: the height is $h$ and the width is $w$.", "w", 0),
        ("Thus $AB$ is $x$ and $CD$ is $y$.", "y", 0),
        ("Answer:\n```\n42\n```", "42", 1),
        ("Answer:\n```\n5\n7\n```", "5", 0),
        # gpt-oss without its special tokens
        ("analysisIs it 5? No. The answer is 5?assistantfinalThe sum is **4**.", "4", 1),
        ("analysisWe add 2 and 2. So \\boxed{4}", "4", 0),
        ("Analysis: we add 2 and 2.\n\n\\boxed{4}", "4", 1),
    ],
)
def test_responses(response: str, answer: str, right: float) -> None:
    assert grade_here("math", response, answer) == right


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        ("1", r"\lim_{x\to 0} \frac{\sin x}{x} = 1", True),
        (r"\infty", r"\lim_{n\to\infty} a_n = \infty", True),
        (r"\frac12", r"\int_0^1 x\,dx = \frac12", True),
        (r"\frac43", r"\int_0^1 x^2 + 1 \,dx = \frac43", True),
        (r"\frac{\pi^2}{6}", r"\sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6}", True),
        (r"\int_0^1 x\,dx = \frac12", r"\frac12", True),
        (r"\frac12", r"\cos\theta = \frac12", True),
        ("42", r"n_{\min} = 42", True),
        (r"\pi", r"x = \pi", True),
        (r"\frac12", r"\int_0^1 x\,dx = \frac13", False),
        (r"\int_0^1 x\,dx = \frac12", r"\int_0^2 x\,dx = \frac12", False),
        ("5", r"\int_0^1 x\,dx + 3 = 5", False),
        ("5", r"\lim_{x \to 0} f(x) + 3 = 5", False),
        ("1", r"\sum_{n=1}^{5} n", False),
        ("5", r"\lim_{x \to 1} f(x) > 5", False),
        (r"\cos\theta = \frac12", r"\sin\theta = \frac12", False),
        (r"\theta = \frac12", r"\cos\theta = \frac12", False),
        (r"n_{\min} = 42", r"n_{\max} = 42", False),
        ("x", r"x = \pi", False),
    ],
)
def test_what_an_equation_gives_the_value_of(expected: str, given: str, same: bool) -> None:
    assert equal(expected, given) == same


def test_a_name_in_a_program_is_no_reasoning() -> None:
    assert (
        final_answer("analysisTotal = 4\nanalysis_of = 5") == "analysisTotal = 4\nanalysis_of = 5"
    )


@pytest.mark.parametrize(
    ("expected", "given", "same"),
    [
        (r"\frac{x-1}{2}", r"f^{-1}(x) = \frac{x-1}{2}", True),
        (r"f^{-1}(x) = \frac{x-1}{2}", r"\frac{x-1}{2}", True),
        ("7", "g^{-1}(3) = 7", True),
        ("3", "f(-2) = 3", True),
        ("5", r"\gcd(a, b) = 5", True),
        ("2e^x", "e^{x}(2)", True),
        ("3rh^2 - h^3", "h^2(3r - h)", True),  # a product
        ("f^{-1}(2) = 3", "f^{-1}(4) = 6", False),
        ("f(x) = 2x", "f^{-1}(x) = 2x", False),
        (r"\frac{2}{f}", "f^{-1}(2)", False),
        ("f^{(10)}(0)", "0", False),
        ("f(2) = 3", "f(-2) = 3", False),
        ("f^{n+1}(x)", "0", False),
        ("x^2", "f(x + 1) = x^2", False),
    ],
)
def test_inverse_functions_and_values(expected: str, given: str, same: bool) -> None:
    assert equal(expected, given) == same
