r"""Every gold of a set, graded against itself in five wrappings, and perturbed.

    .venv/bin/python benchmarks/grading_sets.py [--most N] [--rules] NAME=FILE.jsonl:COLUMN ...

COLUMN holds the expected answer, or a solution that ends in a box or in "#### 42". A gold against
itself is right, so each refusal is a fault; a perturbed one (a number in it is one more or its
sign is turned) is wrong unless it says the same, so each acceptance is printed. `--rules` counts
the same for Minerva's rule and math-verify.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

from entrostat.tasks.convert import final
from entrostat.workers import Call, Pool

WRAPPINGS = {
    "box": "So we have $\\boxed{%s}$.",
    "bold": "**Answer:** **$%s$**",
    "the answer is": "Therefore, the answer is $%s$.",
    "display": "The answer is\n\\[\n%s\n\\]",
    "end token": "Hence \\boxed{%s}.<|im_end|>",
}
RULES = ("strict", "minerva", "math_verify")
LIMIT = 10.0


def main() -> None:
    """Print a line for each set and rule, then every perturbed gold that the strict rule takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--most", type=int, default=10**6, help="golds of each set")
    parser.add_argument("--rules", action="store_true", help="Minerva's rule and math-verify, too")
    parser.add_argument("--grader", default="math")
    arguments = parser.parse_args()
    rules = RULES if arguments.rules else RULES[:1]
    print(f"{'set':<14}{'rule':<13}golds  " + "".join(f"{w:<15}" for w in WRAPPINGS) + "perturbed")
    with Pool([Call("entrostat.grading:prepare", ("math",))]) as pool:
        for one in arguments.sets:
            name, _, rest = one.partition("=")
            file, _, column = rest.rpartition(":")
            golds = list(_golds(Path(file), column))[: arguments.most]
            wrong = [(gold, other) for gold in golds for other in perturbed(gold)]
            for rule in rules:
                counts, taken, refused = _count(pool, arguments.grader, rule, golds, wrong)
                row = "".join(f"{count:<15}" for count in counts)
                print(f"{name:<14}{rule:<13}{len(golds):<7}{row}{len(taken)}/{len(wrong)}")
                if rule == "strict":
                    for gold, other in taken:
                        print(f"    taken   {gold!r:.60} | {other!r:.60}")
                    for gold in refused:
                        print(f"    refused {gold!r:.100}")


def _golds(file: Path, column: str) -> Iterator[str]:
    for line in file.read_text("utf-8").splitlines():
        value = json.loads(line)[column]
        gold = final(value)
        yield re.sub(r"\A\$(.*)\$\Z", r"\1", gold, flags=re.DOTALL)


def perturbed(gold: str) -> Iterator[str]:
    """Golds with one number one more, the last digit another, the sign turned."""
    numbers = list(re.finditer(r"(?<![\w.])\d+(?![\w.])", gold))
    for found in numbers[:1] + numbers[1:][-1:]:
        yield f"{gold[: found.start()]}{int(found[0]) + 1}{gold[found.end() :]}"
        yield f"{gold[: found.start()]}{found[0]}7{gold[found.end() :]}"
    bare = gold.lstrip()
    if re.fullmatch(r"-?\\?[\w{}\\/^ .]+", bare) and not re.fullmatch(
        r"[A-Z]|\\text.*|0|[a-z ]*", bare
    ):
        yield bare[1:] if bare.startswith("-") else f"-{bare}"


def _count(
    pool: Pool, grader: str, rule: str, golds: list[str], wrong: list[tuple[str, str]]
) -> tuple[list[int], list[tuple[str, str]], list[str]]:
    options = {} if grader == "number" else {"rule": rule}
    pairs = [(text % gold, gold) for text in WRAPPINGS.values() for gold in golds]
    pairs += [(WRAPPINGS["box"] % other, gold) for gold, other in wrong]
    calls = [Call("entrostat.grading:grade_here", (grader, a, b, options)) for a, b in pairs]
    grades = [outcome.failure is None and outcome.value == 1 for outcome in pool.map(calls, LIMIT)]
    size = len(golds)
    counts = [size - sum(grades[i * size : (i + 1) * size]) for i in range(len(WRAPPINGS))]
    taken = [
        pair for pair, grade in zip(wrong, grades[size * len(WRAPPINGS) :], strict=True) if grade
    ]
    refused = [gold for gold, grade in zip(golds, grades, strict=False) if not grade]
    return counts, taken, refused


if __name__ == "__main__":
    main()
