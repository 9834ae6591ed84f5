"""benchmarks/: every script runs at a small size, in this process; its figures do not matter.

A script that starts `entrostat` as a process has it called here instead.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import entrostat as es
from entrostat.cli import main
from entrostat.config import from_dict
from paths import ROOT
from processes import run_code
from scripts import load_script

pytestmark = [pytest.mark.usefixtures("unrendered"), pytest.mark.timeout(600)]

# what other modules run, in small and more closely
ELSEWHERE = {
    "hostile_answers": "scoring_test", "jobs": "this one, by lab_vs_trl",
    "power_cut": "checkpoint_test, eval_sets_test", "ranks": "below",
    "study_picture": "study_picture_test", "study_tables": "study_tables_test, study_recipes_test",
}  # fmt: skip


def logged(path: Path, entropies: Sequence[float], **more: float) -> Path:
    """A run's directory as it is read back, without a training."""
    path.mkdir(parents=True)
    rows = [{"iteration": i, "entropy/exact": H, "reward/mean": 0.5, "control/target": 0.8} | more
            for i, H in enumerate(entropies, 1)]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (path / "metrics.jsonl").write_text(text)
    scores = {"iteration": len(rows), "split": "test", "avg@k": 0.5, "pass@k": 0.6, "distinct": 2.0}
    (path / "evaluation.jsonl").write_text(json.dumps(scores) + "\n")
    (path / "config.toml").write_text("")
    (path / "objective.json").write_text('{"methods": []}')
    return path


def called(words: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """`python -m entrostat ...`, without a process."""
    place = [str(word) for word in words].index("entrostat")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words[place + 1 :]])
    if code and options.get("check"):
        raise subprocess.CalledProcessError(code, list(map(str, words)), stderr=err.getvalue())
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def alarms(bench: ModuleType, folder: Path) -> list[str]:
    logged(folder / "falls", [0.9 * 0.98**i for i in range(100)])
    logged(folder / "holds", [0.9 + 0.01 * (i % 3) for i in range(100)])
    return ["--measure", str(folder)]


def claims(bench: ModuleType, folder: Path) -> list[str]:
    bench.M, bench.DISTANCES = 3, (4.0,)
    bench.NOISES = {"normal": bench.NOISES["normal"]}
    return ["--studies", "2", "--seeds", "3"]


def dynamics(bench: ModuleType, folder: Path) -> list[str]:
    bench.WARM, bench.RATES = 2, (3e-4,)
    small = {"sampling": {"prompts": 2, "rollouts": 4}}
    bench.from_dict = lambda data: from_dict({**data, **small})
    return ["--seeds", "1", "--half", "1", "--rounds", "1", "--output", str(folder)]


def grading_rules(bench: ModuleType, folder: Path) -> list[str]:
    lines = (ROOT / "tests/data/math_pairs.jsonl").read_text().splitlines()
    (folder / "pairs.jsonl").write_text("\n".join(lines[:3]))
    return [str(folder / "pairs.jsonl"), "--all"]


def grading_sets(bench: ModuleType, folder: Path) -> list[str]:
    (folder / "golds.jsonl").write_text('{"answer": "12"}\n{"answer": "1/2"}\n')
    return [f"two={folder / 'golds.jsonl'}:answer"]


def frontier(bench: ModuleType, folder: Path) -> list[str]:
    def small(words: Sequence[Any], **options: Any) -> Any:
        return called([*words, "--sampling.prompts", "2", "--no-report"], **options)

    bench.subprocess = SimpleNamespace(run=small)
    return [
        "--methods", "multiplier", "grpo", "--targets", "0.75", "--seeds", "1", "--jobs", "1",
        "--iterations", "3", "--problems", "2", "--output", str(folder), "--course",
        str(folder / "course.png"),
    ]  # fmt: skip


def hosts_curves(bench: ModuleType, folder: Path) -> list[str]:
    pytest.importorskip("trl", reason="the extra trl is not installed")
    bench.run = lambda host, seed, args: {key: [0.9, 0.8] for key in bench.KEYS}
    return ["--seeds", "2", "--iterations", "2", "--output", str(folder), "--picture",
            str(folder / "curves.png")]  # fmt: skip


def lab_vs_trl(bench: ModuleType, folder: Path) -> list[str]:
    pytest.importorskip("trl", reason="the extra trl is not installed")

    def child(side: str, i: int, flags: list[str], run: Any) -> Any:
        with warnings.catch_warnings(action="ignore"):  # as in a process of its own
            return bench.SIDES[side](run, folder / f"{side}{i}")

    bench.child = child
    for side in bench.SIDES:
        (folder / f"{side}0").mkdir()
    return ["--rounds", "1", "--warm-up", "1", "--iterations", "1"]


def llm_dynamics(bench: ModuleType, folder: Path) -> list[str]:
    small = {"sampling": {"prompts": 2, "rollouts": 4}, "optim": {"lr": 1e-4}}
    bench.SETTINGS, bench.WARM = {"words": small}, 2
    train = es.train
    bench.es = SimpleNamespace(
        train=lambda config, task=None: train(replace(config, model="tiny"), task=task)
    )

    def child(words: Sequence[Any], **options: Any) -> None:
        bench.run("words", 0, folder / "words-0")

    bench.subprocess = SimpleNamespace(run=child)
    return ["--job", "words", "--seeds", "1", "--output", str(folder)]


def thermostat(bench: ModuleType, folder: Path) -> list[str]:
    bench.ITERATIONS, bench.FROM = 8, 2
    bench.subprocess = SimpleNamespace(
        run=lambda words, **options: called([*words, "--sampling.prompts", "2", "--no-report"])
    )
    return ["--knobs", "multiplier", "repo_r", "--targets", "0.8", "--seeds", "1", "--jobs", "1",
            "--output", str(folder)]  # fmt: skip


def thermostat_cost(bench: ModuleType, folder: Path) -> list[str]:
    bench.ProcessPoolExecutor = lambda *_: ThreadPoolExecutor(1)
    return ["--rounds", "1", "--warm-up", "1", "--iterations", "1"]


def thermostat_changes(bench: ModuleType, folder: Path) -> list[str]:
    bench.ITERATIONS, bench.CHANGE = 66, 30

    def train(config: Any, task: Any, resume: bool) -> None:
        assert [len(task.example(i, "train").prompt) for i in (0, 30 * 32)]  # before, after
        logged(Path(config.output), [0.8 + 0.1 * (i % 3) for i in range(66)])

    bench.train = train
    return ["--knobs", "multiplier", "--cases", "task", "--seeds", "1", "--output", str(folder)]


def thermostat_words(bench: ModuleType, folder: Path) -> list[str]:
    for name in ("grpo-0", "held-0"):
        logged(folder / name, [0.9 - 0.002 * i for i in range(bench.ITERATIONS)])
    return [str(folder)]


def token_stats(bench: ModuleType, folder: Path) -> list[str]:
    return ["--only", "accuracy,tiles", "--shrink", "256", "--rounds", "1", "--threads", "1",
            "--json", str(folder / "found.json")]  # fmt: skip


def verdicts(bench: ModuleType, folder: Path) -> list[str]:
    return ["--border", "1"]


def plain(*words: str) -> Callable[[ModuleType, Path], list[str]]:
    """A script whose flags are enough to make it small."""
    return lambda bench, folder: [word.replace("FOLDER", str(folder / "new")) for word in words]


SMALL: dict[str, Callable[[ModuleType, Path], list[str]]] = {
    "alarms": alarms,
    "balance_step": plain(
        "--iterations", "--prompts", "4", "--rollouts", "4", "--seeds", "1", "--output", "FOLDER"
    ),
    "bf16_step": plain("tiny"),
    "claims": claims,
    "clip_bias": plain("--seeds", "1", "--iterations", "2"),
    "dynamics": dynamics,
    "frontier": frontier,
    "frontier_llm": lambda bench, folder: ["--picture", str(folder / "llm.png")],
    "grading_rules": grading_rules,
    "grading_sets": grading_sets,
    "hosts_curves": hosts_curves,
    "lab_vs_trl": lab_vs_trl,
    "llm_cost": plain("--model", "tiny"),
    "llm_dynamics": llm_dynamics,
    "long_answers": plain(
        "--k",
        "1",
        "2",
        "--iterations",
        "2",
        "--prompts",
        "4",
        "--rollouts",
        "4",
        "--problems",
        "2",
        "--seeds",
        "1",
        "--output",
        "FOLDER",
    ),
    "objective_cost": plain("--rounds", "1", "--threads", "1", "--skip-model"),
    "online_dynamics": plain("--iterations", "2", "--rounds", "1", "--warm-up", "0"),
    "planted_runs": plain("--output", "FOLDER"),
    "sandbox": plain("--problems", "1", "--rounds", "1"),
    "scale": plain("--rollouts", "4", "--length", "64"),
    "thermostat": thermostat,
    "thermostat_changes": thermostat_changes,
    "thermostat_cost": thermostat_cost,
    "thermostat_plants": plain("--cases", "4"),
    "thermostat_words": thermostat_words,
    "token_stats": token_stats,
    "verdicts": verdicts,
    "workers": plain("--answers", "4", "--rounds", "1"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_it_runs_in_small(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    bench = load_script(f"benchmarks/{name}.py")
    words = SMALL[name](bench, tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
    bench.main()
    said = capsys.readouterr().out
    assert len(said.splitlines()) >= 2
    assert "nan" not in said.lower().split()


@pytest.mark.long
def test_ranks_runs_in_small(tmp_path: Path) -> None:
    """In forks of a process that is in no group of its own; this one may be, by other tests."""
    script = str(ROOT / "benchmarks/ranks.py")
    words = [script, "--tokens", "25000", "--ranks", "2", "--rounds", "1"]
    code = f"import runpy, sys; sys.argv = {words}; runpy.run_path({script!r}, run_name='__main__')"
    said = run_code(code, tmp_path)
    assert "25000 tokens" in said
    assert {name for name in es.methods() if f"\n{name} " not in said} == set()


def test_every_script_is_run_somewhere() -> None:
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert scripts == SMALL.keys() | ELSEWHERE.keys()
    stages = {path.stem for path in (ROOT / "benchmarks/gpu").glob("stage_*.py")}
    kit = (ROOT / "tests/benchmarks/gpu_kit_test.py").read_text()
    assert {name for name in stages if name.removeprefix("stage_") not in kit} == set()
