"""What both golden scripts share: the inputs, the JSON's layout, and the comparison of two of them.

The inputs are drawn once from a seed, rounded to four decimals and written into each JSON file, so
that the tests need neither this module nor the libraries.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TOLERANCE = 1e-7  # of `--check`: between goldens made on two machines

# [B, T] = [8, 7]: ragged, with holes as tool output leaves them
MASK = [
    [1, 1, 1, 1, 1, 1, 1],
    [1, 1, 0, 0, 0, 0, 0],
    [0, 1, 1, 0, 1, 1, 0],
    [1, 1, 1, 1, 0, 0, 0],
    [1, 0, 0, 0, 0, 0, 0],
    [0, 0, 1, 1, 1, 0, 1],
    [1, 1, 1, 1, 1, 1, 0],
    [1, 1, 1, 0, 0, 0, 0],
]
GROUP = [3, 0, 3, 1, 0, 1, 3, 0]  # of 3, 2 and 3 rollouts, interleaved
REWARDS = [1.0, 0.0, 0.25, 1.0, 0.75, 0.0, -0.5, 1.0]


def make_inputs() -> dict[str, dict[str, Any]]:
    """The batches: [B, T] nested lists of numbers with four decimals.

    ragged: ratios on both sides of every clip bound, log-probs and advantages spread enough that
        covariances lie below, in and above [1, 5]; numbers at mask 0 are like all others.
    empty: the same with one rollout of which no token is trained on.
    on_policy: the same with logp = old_logp.
    """
    g = torch.Generator().manual_seed(20)

    def rand() -> torch.Tensor:
        return torch.rand(8, 7, generator=g, dtype=torch.float64)

    old = -0.1 - 7 * rand() ** 2
    logp = (old + (2 * rand() - 1) * 1.4).clamp(max=-0.01)
    ragged = {
        "old_logp": old,
        "logp": logp,
        "ref_logp": (logp + (2 * rand() - 1) * 0.8).clamp(max=-0.01),
        "entropy": 0.05 + 2 * rand(),
        "advantages": 1.3 * torch.randn(8, 7, generator=g, dtype=torch.float64),
    }
    ragged = {k: (v * 1e4).round().div(1e4).tolist() for k, v in ragged.items()}
    # one number per rollout, as every outcome estimator gives
    ragged |= {"rollout_advantages": [0.9, -1.1, -0.4, 0.7, 1.2, -0.7, -0.5, 0.3]}
    ragged |= {"mask": MASK, "group": GROUP, "rewards": REWARDS}
    empty_mask = [[0] * 7 if i == 3 else row for i, row in enumerate(MASK)]
    return {
        "ragged": ragged,
        "empty": ragged | {"mask": empty_mask},
        "on_policy": ragged | {"logp": ragged["old_logp"]},
    }


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def plain(values: torch.Tensor) -> Any:
    """Nested lists with ten significant digits: readable, and a thousand times finer than 1e-7."""

    def shorten(x: Any) -> Any:
        if isinstance(x, list):
            return [shorten(each) for each in x]
        # + 0.0 turns -0.0 into 0.0
        return float(f"{x:.10g}") + 0.0

    return shorten(values.detach().tolist())


def versions(*names: str) -> dict[str, str]:
    # without the "+cpu" of a build
    return {name: importlib.metadata.version(name).split("+")[0] for name in names}


def dump(golden: dict[str, Any]) -> str:
    """JSON with one line for each innermost list or table."""
    text = json.dumps(golden, indent=1)

    def join(match: re.Match[str]) -> str:
        return re.sub(r"\s*\n\s*", " ", match.group(0)).replace("[ ", "[").replace(" ]", "]")

    text = re.sub(r"\[[^\[\]{}]*\]", join, text)
    text = re.sub(r"\{[^\[\]{}]*\}", join, text)
    return text.replace("{ ", "{").replace(" }", "}") + "\n"


def compare(new: Any, old: Any, where: str = "") -> tuple[float, list[str]]:
    """(largest difference of two numbers, what differs in kind or by more than TOLERANCE)."""
    if isinstance(new, dict) and isinstance(old, dict):
        if new.keys() != old.keys():
            return 0.0, [f"{where}: keys {sorted(new.keys() ^ old.keys())} in one only"]
        pairs = [(new[key], old[key], f"{where}/{key}") for key in new]
    elif isinstance(new, list) and isinstance(old, list):
        if len(new) != len(old):
            return 0.0, [f"{where}: {len(new)} entries, {len(old)} committed"]
        pairs = [
            (a, b, f"{where}/{a['name'] if isinstance(a, dict) and 'name' in a else i}")
            for i, (a, b) in enumerate(zip(new, old, strict=True))
        ]
    elif isinstance(new, float) and isinstance(old, int | float):
        difference = abs(new - old)
        if difference <= TOLERANCE * max(1.0, abs(old)):
            return difference, []
        return difference, [f"{where}: {new!r}, committed {old!r}"]
    else:
        return 0.0, [] if new == old else [f"{where}: {new!r}, committed {old!r}"]
    largest, found = 0.0, []
    for a, b, place in pairs:
        difference, messages = compare(a, b, place)
        largest, found = max(largest, difference), found + messages
    return largest, found


def main(make: Callable[[], dict[str, Any]], path: Path, doc: str | None) -> None:
    """Write the golden, or with --check compare a new one with it; exit 1 where they differ."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help=f"compare with {path.name} instead of writing it"
    )
    check = parser.parse_args().check
    torch.set_num_threads(1)
    golden = json.loads(dump(make()))
    cases = sum(len(value) for value in golden.values() if isinstance(value, list))
    if not check:
        path.write_text(dump(golden))
        print(f"{path.name}: {cases} cases, {path.stat().st_size / 1000:.0f} kB")
        return
    largest, found = compare(golden, json.loads(path.read_text()), path.name)
    assert math.isfinite(largest)
    for message in found:
        print(message)
    print(f"{path.name}: {cases} cases, largest difference {largest:.1e}")
    if found:
        raise SystemExit(1)
