"""docs/metrics.md has every key that a run can log."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from entrostat.config import from_dict
from entrostat.method import METHODS
from entrostat.trainers.lab import train
from paths import ROOT

PAGE = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
CELLS = re.findall(r"^\| (`[^|]*`) \|", PAGE, re.MULTILINE)
KEYS = {key for cell in CELLS for key in re.findall(r"`([^`]+)`", cell)}
GROUPS = {key.partition("/")[0] for key in KEYS if "/" in key}
# what can log: the rest reads logs, ours and other trainers'
ROOMS = ("control", "core", "data", "dynamics", "method", "models", "runs", "trainers")


def written() -> set[str]:
    """Texts in the code that are keys: `group/name`."""
    found = set()
    for room in ROOMS:
        for path in (ROOT / "src/entrostat" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return {key for key in found if key.partition("/")[0] in GROUPS and "/" in key[1:]}


def test_every_key_that_the_code_writes_is_on_the_page() -> None:
    keys = {key for key in written() if re.fullmatch(r"\w+/[\w.]*[^_\W]", key)}
    assert len(keys) > 60
    assert keys - KEYS == set()


def test_every_coefficient_that_moves_is_on_the_page() -> None:
    moved = {f"control/{cls.actuator[0]}" for cls in METHODS.values() if cls.actuator is not None}
    assert len(moved) > 5
    assert moved - KEYS == set()


@pytest.mark.usefixtures("unrendered")
def test_every_key_of_a_run_is_on_the_page(tmp_path: Path) -> None:
    chain = [
        "grpo",
        "repo_d",
        "pos_adv",
        "adaptive_entropy",
        {"name": "kl_ref", "coef": "linear 1 0"},
    ]
    probes = {"analyze": {"every": 1}, "forecast": {"every": 1}, "numerics": {"round_logp": "bf16"}}
    size = {"prompts": 2, "rollouts": 4}
    tables: list[dict[str, Any]] = [
        {"method": chain, "sampling": size | {"redraws": 1}, **probes},
        {"method": {"name": "thermostat", "target": "0.7x"}, "iterations": 6},
        {"method": {"name": "thermostat", "knob": "zeta"}, "iterations": 2},
        {"method": "prime", "sampling": size | {"enough": {"share": 0.5}}},
        {"task": "tool_sum"},
    ]  # fmt: skip
    seen: set[str] = set()
    for number, table in enumerate(tables):
        given = {"sampling": size, "iterations": 1, "eval": {"prompts": 0}, "threads": 1} | table
        run = train(from_dict(given | {"output": str(tmp_path / str(number))}))
        for line in (run / "metrics.jsonl").read_text().splitlines():
            seen |= json.loads(line).keys()
    # of two methods with one key the method's name stands before it
    names = ["repo_d", "pos_adv", "adaptive_entropy", "kl_ref"]
    plain = {re.sub(rf"^control/(?:{'|'.join(names)})_", "control/", key) for key in seen}
    assert plain - KEYS == {"control/coef"}  # a parameter on a schedule
    assert len(plain) > 100
