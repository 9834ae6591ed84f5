"""Random and mutated answers through the scorers: what raises, what hangs, what wrongly passes.

Answers are made from right ones (of this prompt and of others) and from a list of nasty texts, by
random edits; seeded. `target_sum` and the JSONL graders are called directly, as training does, ten
data sets of reasoning-gym in worker processes. Where a checker of its own exists (exact fractions,
truth tables, the oracle's text), an answer that scores 1 without being right is a false accept.

    raised      the scorer raised: the answer scores 0 and is counted; training goes on
    hung        it took longer than the limit, or its process died: the same
    accepted    scored 1
    false       of these, those that the checker finds wrong

Examples:
    python benchmarks/hostile_answers.py
    python benchmarks/hostile_answers.py --count 20000 --seed 1
"""

# ruff: noqa: RUF001 - of other scripts on purpose
from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any

from entrostat.grading import make_grader
from entrostat.tasks import Example
from entrostat.tasks.gym import GymTask
from entrostat.tasks.target_sum import TargetSum
from entrostat.workers import Call, Pool

NASTY = (
    "", " ", "\n", "\0", "nan", "NaN", "inf", "-inf", "1e400", "1e9999999", "9" * 5000, "0x2a",
    "-0", "٤٢", "４２", "½", "²", "−42", "\u200b", "\ud800", "\u202e", "None", "True", "False",
    "null", "true", "[]", "{}", "[[]]", '{"a": 1}', "[" * 500, "(" * 300, "-" * 300 + "1", "1_0",
    "lambda: 0", "1if 1 else 2", "x" * 5000, "oracle_answer", "entry", "answer", "self",
    "__import__('os')", "9**9**9", "9**20", "sin(exp(9**20))", "1/0", "24e0+0e0*(1)",
    "0x18+0x0*(1)", "×", "2 × 3", "P ∧ Q", "¬P", "a∨¬a", "∧".join("abcdefghijklmnopqrst"),
    "<answer>", "</answer>", "<answer></answer>", "4,2", "10-42", "3/42", "1e5000", "\\boxed{}",
    "\\boxed{42}", "\\frac{1}{2}",
)  # fmt: skip
ALPHABET = "0123456789+-*/=.,()[]{} \t\n<>\\|_^%$#\"'eEijnax×÷−½²٤∧∨¬→↔PQRS"
MOST = 6000  # characters


@dataclass
class Tally:
    """What became of one scorer's answers."""

    name: str
    answers: int = 0
    raised: int = 0
    hung: int = 0
    accepted: int = 0
    false: list[tuple[str, str]] = field(default_factory=list)
    checked: bool = True
    slowest: float = 0.0
    kinds: dict[str, int] = field(default_factory=dict)

    def row(self) -> str:
        false = f"{len(self.false)}" if self.checked else "-"
        return (
            f"{self.name:<28}{self.answers:>9}{self.raised:>8}{self.hung:>6}{self.accepted:>10}"
            f"{false:>7}"
        )


ENDS = (".", "!", " km", "**", "%", "/1", "e0", ",0")
STARTS = ("so it is ", "= ", "**", "-", "- ")
# (text, place, a later place, the right answer, random numbers) to a text
EDITS: tuple[Callable[[str, int, int, str, random.Random], str], ...] = (
    lambda text, a, b, right, rng: text[:a] + rng.choice(ALPHABET) + text[a:],
    lambda text, a, b, right, rng: text[:a] + text[b:],
    lambda text, a, b, right, rng: text[:a] + rng.choice(ALPHABET) + text[a + 1 :],
    lambda text, a, b, right, rng: text[:b] + text[a:],
    lambda text, a, b, right, rng: text[:a] + rng.choice(NASTY) + text[a:],
    lambda text, a, b, right, rng: f"<answer>{text}</answer>",
    lambda text, a, b, right, rng: text * rng.randint(2, 4),
    lambda text, a, b, right, rng: f"{text} {right}",
    lambda text, a, b, right, rng: rng.choice(STARTS) + text,
    lambda text, a, b, right, rng: text + rng.choice(ENDS),
)


def mutated(rng: random.Random, right: str, others: list[str]) -> str:
    """A text not far from an answer; often it is one."""
    kind = rng.random()
    if kind < 0.1:
        return "".join(rng.choices(ALPHABET, k=rng.randint(0, 40)))
    text = right if kind < 0.6 else rng.choice(others) if kind < 0.8 else rng.choice(NASTY)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        place = rng.randint(0, len(text))
        later = rng.randint(place, min(len(text), place + 6))
        text = rng.choice(EDITS)(text, place, later, right, rng)[:MOST]
    return text


def tagged(text: str) -> str:
    """What stands in the last closed <answer>, by splitting."""
    parts = [part for part in text.split("<answer>")[1:] if "</answer>" in part]
    return (parts[-1].split("</answer>")[0] if parts else text).strip()


# checkers: written apart from the scorers; what they call right is right


def sums_to_target(text: str, example: Example) -> bool:
    target, k = example.answer
    parts = text.split("+")
    return (
        len(parts) == k
        and all(p in tuple("123456789") for p in parts)
        and target == sum(map(int, parts))
    )


def is_number(text: str, answer: str) -> bool:
    """The last word with a digit in it is the number, and no operator stands before it."""
    text = tagged(text)
    if "\\boxed{" in text:
        text = text.split("\\boxed{")[-1]
        text = text[: _closing(text)]
    frac = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}", re.ASCII)
    text = frac.sub(lambda m: f"{m[1]}/{m[2]}", text)
    words = re.split(r"[\s()$\"'`:;?#\[\]}*_%=!\\,.]*(?:\s|\Z|[()$\"'`:;?#\[\]}*_%=\\])", text)
    last = [word for word in words if any(map(str.isnumeric, word))][-1:]
    found = re.sub(r"^[*_$(\[\"'`#:=]+", "", last[0]).replace("−", "-") if last else ""
    plain = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.?\d+)?(?:[eE][-+]?\d{1,3})?"
    if not re.fullmatch(f"{plain}(?:/{plain})?", found, re.ASCII):
        return False
    above, _, below = found.replace(",", "").partition("/")
    try:
        return Fraction(above) / Fraction(below or "1") == Fraction(answer)
    except (ValueError, ZeroDivisionError):
        return False


def _closing(text: str) -> int:
    depth = 1
    for place, sign in enumerate(text):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if not depth:
            return place
    return len(text)


def _value(text: str) -> tuple[Fraction, list[int]] | None:
    """A sum of products by recursive descent, in fractions; and its numbers."""
    if not re.fullmatch(r"[0-9+\-*/() ]+", text):
        return None
    tokens = re.findall(r"\d+|.", text.replace(" ", " "))
    tokens = [token for token in tokens if token != " "]
    numbers: list[int] = []

    def expression() -> Fraction:
        value = term()
        while tokens and tokens[0] in "+-":
            value = value + term() if tokens.pop(0) == "+" else value - term()
        return value

    def term() -> Fraction:
        value = factor()
        while tokens and tokens[0] in "*/":
            value = value * factor() if tokens.pop(0) == "*" else value / factor()
        return value

    def factor() -> Fraction:
        token = tokens.pop(0)
        if token == "-":
            return -factor()
        if token == "(":
            value = expression()
            if tokens.pop(0) != ")":
                raise ValueError
            return value
        numbers.append(int(token))
        return Fraction(token)

    try:
        value = expression()
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        return None
    return None if tokens else (value, numbers)


def combines(text: str, example: Example) -> bool:
    meta = example.data["entry"]["metadata"]
    found = _value(text)
    return found is not None and (found[0], sorted(found[1])) == (
        meta.get("target", 24), sorted(meta["numbers"])
    )  # fmt: skip


def is_complex(text: str, example: Example) -> bool:
    found = text.replace(" ", "").lower().strip("()").replace("i", "j")
    if re.search(r"[^0-9+\-.ej]", found):
        return False
    try:
        value = complex(re.sub(r"(^|[+-])j", r"\g<1>1j", found))
    except ValueError:
        return False
    return abs(value - complex(*example.data["entry"]["metadata"]["result"])) < 1e-9


def same_text(text: str, example: Example) -> bool:
    return text.strip() == str(example.answer).strip()


def same_value(text: str, example: Example) -> bool:
    """Whatever Decimal reads, commas and low lines dropped: the scorers' own idea of a number."""
    try:
        return Fraction(re.sub("[,_]", "", text.strip())) == Fraction(example.answer)
    except ValueError:
        return same_text(text, example)


def same_json(text: str, example: Example) -> bool:
    try:
        return json.loads(text) == json.loads(example.answer)
    except (ValueError, RecursionError):
        return False


def same_primes(text: str, example: Example) -> bool:
    try:
        found = sorted(int(part) for part in text.split("×") if part.strip())
    except ValueError:
        return False
    return found == sorted(int(part) for part in str(example.answer).split("×"))


def near_probability(text: str, example: Example) -> bool:
    """Within 1e-4, the scorer's own tolerance."""
    try:
        found = Fraction(text.replace(",", ""))
        return abs(found - Fraction(str(example.answer))) <= Fraction(1, 10_000)
    except (ValueError, ZeroDivisionError):
        return False


def follows(text: str, example: Example) -> bool:
    """By Python's own operators, over all assignments of the item's variables."""
    meta = example.data["entry"]["metadata"]
    names = meta["variables"]
    if set(text) - set(" \n\t()∧∨¬→↔" + "".join(names)):
        return False
    for values in product((False, True), repeat=len(names)):
        world = dict(zip(names, values, strict=True))
        try:
            if all(_holds(p, world) for p in meta["premises"]) and not _holds(text, world):
                return False
        except (ValueError, IndexError, RecursionError):
            return False
    return True


def _holds(text: str, world: dict[str, bool]) -> bool:
    """Precedence climbing: ↔ binds least, then →, ∨, ∧, ¬; all group to the left, as theirs."""
    tokens = [sign for sign in text if not sign.isspace()]
    levels = ("↔", "→", "∨", "∧")
    apply: dict[str, Callable[[bool, bool], bool]] = {
        "↔": lambda a, b: a == b, "→": lambda a, b: not a or b,
        "∨": lambda a, b: a or b, "∧": lambda a, b: a and b,
    }  # fmt: skip

    def parse(level: int) -> bool:
        if level == len(levels):
            token = tokens.pop(0)
            if token == "¬":
                return not parse(level)
            if token == "(":
                value = parse(0)
                if tokens.pop(0) != ")":
                    raise ValueError
                return value
            if token not in world:
                raise ValueError
            return world[token]
        value = parse(level + 1)
        while tokens and tokens[0] == levels[level]:
            tokens.pop(0)
            value = apply[levels[level]](value, parse(level + 1))
        return value

    value = parse(0)
    if tokens:
        raise ValueError
    return value


GYM: dict[str, Callable[[str, Example], bool] | None] = {
    "chain_sum": same_value,
    "countdown": combines,
    "puzzle24": combines,
    "complex_arithmetic": is_complex,
    "game_of_life_halting": same_text,
    "game_of_life": same_json,
    "prime_factorization": same_primes,
    "coin_flip": near_probability,
    "calendar_arithmetic": same_value,
    "propositional_logic": follows,
}


def direct(
    tally: Tally, cases: Iterator[tuple[str, Any]], score: Callable[[str, Any], float],
    right: Callable[[str, Any], bool],
) -> Tally:  # fmt: skip
    for text, of in cases:
        began = time.perf_counter()
        try:
            accepted = score(text, of) >= 1
        except Exception as error:
            tally.raised += 1
            tally.kinds[type(error).__name__] = tally.kinds.get(type(error).__name__, 0) + 1
            accepted = False
        tally.slowest = max(tally.slowest, time.perf_counter() - began)
        tally.answers += 1
        tally.accepted += accepted
        if accepted and not right(text, of):
            tally.false.append((text, str(of)))
    return tally


def through_workers(name: str, pool: Pool, rng: random.Random, count: int, limit: float) -> Tally:
    """A data set's scorer in workers."""
    task, check = GymTask(name), GYM[name]
    tally = Tally(f"gym:{name}", checked=check is not None)
    examples = [task.example(i, "train") for i in range(40)]
    answers = [str(e.answer or e.data["entry"]["metadata"].get("example_answer")) for e in examples]
    for first in range(0, count, 1000):
        cases = []
        for _ in range(min(1000, count - first)):
            place = rng.randrange(len(examples))
            cases.append((mutated(rng, answers[place], answers), examples[place]))
        calls: list[Call] = [task.remote(*case) for case in cases]
        for (text, example), outcome in zip(cases, pool.map(calls, limit), strict=True):
            tally.answers += 1
            if outcome.failure is None:
                accepted = outcome.value >= 1
                tally.accepted += accepted
                if accepted and check is not None and not check(tagged(text), example):
                    tally.false.append((text, str(example.answer)))
            elif outcome.failure == "raised":
                tally.raised += 1
                kind = outcome.detail.split(":")[0]
                tally.kinds[kind] = tally.kinds.get(kind, 0) + 1
            else:
                tally.hung += 1
    return tally


def run(count: int, seed: int, limit: float, workers: int | None) -> Iterator[Tally]:
    """Two fifths to target_sum, three tenths each to the graders and to reasoning-gym."""
    rng = random.Random(seed)
    task = TargetSum()
    examples = [task.example(i, split) for split in task.splits for i in range(50)]
    sums = ["+".join(_digits(rng, *example.answer)) for example in examples]

    def of_sums() -> Iterator[tuple[str, Example]]:
        for _ in range(count * 4 // 10):
            place = rng.randrange(len(examples))
            yield mutated(rng, sums[place], sums), examples[place]

    yield direct(Tally("target_sum"), of_sums(), task.score, sums_to_target)

    numbers = [str(rng.randint(-99, 99999)) for _ in range(30)] + ["0.5", "-1.25", "1e3", "42"]
    right: dict[str, Callable[[str, str], bool]] = {
        "exact": lambda text, answer: tagged(text) == answer,
        "contains": lambda text, answer: len(tagged(text).split(answer)) > 1,
        "number": is_number,
    }
    for name in right:
        grader = make_grader(name)
        cases = (
            (mutated(rng, answer, numbers), answer)
            for answer in (rng.choice(numbers) for _ in range(count // 10))
        )
        yield direct(Tally(f"grader {name}"), cases, grader, right[name])

    with Pool([GymTask(name).remote_setup() for name in GYM], workers) as pool:
        for name in GYM:
            yield through_workers(name, pool, rng, count * 3 // 100, limit)


def _digits(rng: random.Random, target: int, k: int) -> list[str]:
    """k digits 1-9 with that sum."""
    digits = [1] * k
    while sum(digits) < target:
        place = rng.randrange(k)
        digits[place] += digits[place] < 9
    return [str(digit) for digit in digits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for an answer")
    parser.add_argument("--workers", type=int, default=None)
    arguments = parser.parse_args()
    began = time.perf_counter()
    print(f"{'':<28}{'answers':>9}{'raised':>8}{'hung':>6}{'accepted':>10}{'false':>7}")
    total = Tally("all")
    for tally in run(arguments.count, arguments.seed, arguments.limit, arguments.workers):
        kinds = ", ".join(f"{kind} {count}" for kind, count in tally.kinds.items())
        slow = f"  slowest {1e3 * tally.slowest:.1f} ms" if tally.slowest else ""
        print(f"{tally.row()}{slow}  {kinds}".rstrip(), flush=True)
        for text, answer in tally.false[:5]:
            print(f"    {ascii(text)[:100]} for {answer!r:.60}")
        total.answers += tally.answers
        total.raised += tally.raised
        total.hung += tally.hung
        total.accepted += tally.accepted
        total.false += tally.false
    print(f"{total.row()}  {time.perf_counter() - began:.0f} s, seed {arguments.seed}")


if __name__ == "__main__":
    main()
