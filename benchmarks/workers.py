"""What a worker process costs an answer, beside calling the function itself. CPU.

Rounds are interleaved, direct and through pools of one and two workers; the table gives the medians
of microseconds per answer. Below it: how long a pool takes to be ready, and what a call that hangs
costs beyond its time limit (its worker is killed, another takes over).

Examples:
    python benchmarks/workers.py
    python benchmarks/workers.py --answers 5000 --rounds 9
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from entrostat.tasks.gym import GymTask
from entrostat.workers import Call, Pool
from entrostat.workers.server import find_function

GYM = ("chain_sum", "countdown", "complex_arithmetic")


def jobs(answers: int) -> tuple[dict[str, list[Call]], list[Call]]:
    """Calls by name, and what prepares for them."""
    found = {
        "math:sqrt": [Call("math:sqrt", (float(i),)) for i in range(answers)],
        "number grader": [
            Call("entrostat.grading:grade_here", ("number", f"so it is {i}", "42"))
            for i in range(answers)
        ],
    }
    setups = []
    for name in GYM:
        task = GymTask(name)
        examples = [task.example(i % 32, "train") for i in range(answers)]
        found[f"gym:{name}"] = [task.remote(str(e.answer), e) for e in examples]
        setups.append(task.remote_setup())
    return found, setups


def direct(calls: list[Call]) -> None:
    for function, arguments in calls:
        find_function(function)(*arguments)


def timed(work: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answers", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    found, setups = jobs(arguments.answers)
    began = time.perf_counter()
    with Pool(setups, workers=1) as one, Pool(setups, workers=2) as two:
        one.map([Call("math:sqrt", (1.0,))], 10)
        ready = time.perf_counter() - began
        two.map([Call("math:sqrt", (1.0,))] * 2, 10)
        print(f"{'':<24}{'direct':>9}{'1 worker':>10}{'2 workers':>11}   1 worker costs")
        for name, calls in found.items():
            ways: dict[str, Callable[[], object]] = {
                "direct": lambda calls=calls: direct(calls),
                "one": lambda calls=calls: one.map(calls, 60),
                "two": lambda calls=calls: two.map(calls, 60),
            }
            times = {way: [] for way in ways}
            for _ in range(arguments.rounds):
                for way, work in ways.items():
                    times[way].append(timed(work, len(calls)))
            a, b, c = (statistics.median(times[way]) for way in ways)
            print(f"{name:<24}{a:>9.1f}{b:>10.1f}{c:>11.1f}   +{b - a:.1f} µs per answer")
        print(f"\nready, reasoning-gym imported: {ready:.2f} s")
        over = []
        for _ in range(arguments.rounds):
            began = time.perf_counter()
            one.map([Call("time:sleep", (60,)), Call("math:sqrt", (1.0,))], 0.2)
            over.append(time.perf_counter() - began - 0.2)
        print(f"a call that hangs costs {1e3 * statistics.median(over):.1f} ms beyond its limit")


if __name__ == "__main__":
    main()
