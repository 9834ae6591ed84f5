"""The three rules of grader "math" side by side, over the hand-made pairs of tests/data.

    .venv/bin/python benchmarks/grading_rules.py [FILE.jsonl or FILE.tsv] [--all]

For each rule: right answers it takes, wrong answers it takes, calls that ran out of time, seconds.
Then every pair over which Minerva's rules and math-verify disagree with each other, or either with
the table. `given` is what our extraction finds; all three rules get the same.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from entrostat.grading.mathematics import expected_answer, extracted
from entrostat.workers import Call, Pool

PAIRS = Path(__file__).parent.parent / "tests" / "data" / "math_pairs.jsonl"
RULES = ("strict", "minerva", "math_verify")
LIMIT = 10.0


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default=str(PAIRS))
    parser.add_argument("--all", action="store_true", help="every pair that a rule errs at")
    arguments = parser.parse_args()
    pairs = _pairs(Path(arguments.file))
    verdicts: dict[str, list[float | None]] = {}
    with Pool([Call("entrostat.grading:prepare", ("math",))]) as pool:
        for rule in RULES:
            calls = [
                Call(
                    "entrostat.grading:grade_here",
                    ("math", pair["response"], pair["answer"], {"rule": rule}),
                )
                for pair in pairs
            ]
            pool.map(calls[:4], LIMIT)  # forks the workers
            began = time.perf_counter()
            outcomes = pool.map(calls, LIMIT)
            seconds = time.perf_counter() - began
            verdicts[rule] = [None if o.failure else o.value for o in outcomes]
            print(_line(rule, pairs, verdicts[rule], seconds))
    print(f"\n{'right':<6}" + "".join(f"{rule:<13}" for rule in RULES) + "expected | given")
    for place, pair in enumerate(pairs):
        said = [verdicts[rule][place] for rule in RULES]
        if said[1] != said[2] or (arguments.all and set(said) != {float(pair["expected"])}):
            given = " & ".join(extracted(pair["response"])) or "(none)"
            row = "".join(f"{'timeout' if v is None else int(v):<13}" for v in said)
            print(f"{pair['expected']:<6}{row}{expected_answer(pair['answer'])} | {given:.100}")


def _pairs(file: Path) -> list[dict]:
    """Rows of grader "math": of JSON, or of a table as tests/data/grades.tsv."""
    lines = file.read_text("utf-8").splitlines()
    if file.suffix != ".tsv":
        return [json.loads(line) for line in lines]
    rows = [[json.loads(f'"{field}"') for field in line.split("\t")[:4]] for line in lines[1:]]
    return [
        {"response": response, "answer": answer, "expected": int(right)}
        for grader, response, answer, right in rows
        if grader == "math"
    ]


def _line(rule: str, pairs: list[dict], verdicts: list[float | None], seconds: float) -> str:
    counts = {
        (right, verdict): sum(
            pair["expected"] == right and said == verdict
            for pair, said in zip(pairs, verdicts, strict=True)
        )
        for right in (0, 1)
        for verdict in (0.0, 1.0)
    }
    rights = sum(pair["expected"] for pair in pairs)
    return (
        f"{rule:<12} right taken {counts[1, 1.0]}/{rights}, wrong taken "
        f"{counts[0, 1.0]}/{len(pairs) - rights}, out of time {verdicts.count(None)}, "
        f"{seconds:.1f} s ({1e3 * seconds / len(pairs):.1f} ms a pair)"
    )


if __name__ == "__main__":
    main()
