"""The doctor on what a run left: faults planted in logs and dumps, ours and other trainers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import refused
from entrostat.cli import main
from entrostat.config import from_dict
from entrostat.diagnosis.doctor import Finding, examine_run, rollouts_at
from entrostat.logs.importers import read
from entrostat.logs.rollouts import Rollouts, load_rollouts, save_rollouts
from entrostat.logs.run import Run
from entrostat.trainers.lab import examine, train
from paths import TESTS

FIXTURES = TESTS / "importers"


def small(output: Path) -> Any:
    return from_dict(
        {
            "iterations": 2, "output": str(output), "sampling": {"prompts": 12, "rollouts": 6},
            "eval": {"prompts": 0}, "save": {"checkpoints": 0},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small(tmp_path_factory.mktemp("left") / "run"))


def of(run: Run) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine_run(run)}


def wrong(findings: dict[str, Finding]) -> set[str]:
    return {name for name, finding in findings.items() if finding.wrong}


def test_a_clean_run(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    findings = of(read(left))
    assert wrong(findings) == set(), findings
    asked = {name for name, finding in findings.items() if finding.level == "ok"}
    assert asked >= {"rounding", "cancellation", "mismatch", "temperature", "eos", "group", "ratio"}
    assert main(["doctor", str(left)]) == 0
    assert "nothing wrong" in capsys.readouterr().out


def planted(change: Any, rollouts: Rollouts) -> Rollouts:
    change(rollouts)
    return rollouts


def halve(r: Rollouts) -> None:
    r.logp = r.logp.bfloat16().float()


def colder(r: Rollouts) -> None:  # tokens likelier than their entropies say
    r.entropy = r.entropy * 1.6 + 0.2


def less(r: Rollouts) -> None:  # below -p log p - (1 - p) log(1 - p)
    r.entropy = torch.zeros_like(r.entropy)


def other_sampler(r: Rollouts) -> None:
    r.sampler_logp = 0.7 * r.logp


def ones(r: Rollouts) -> None:
    r.group = torch.arange(len(r), dtype=torch.int32)


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("rounding", halve), ("temperature", colder), ("cancellation", less),
        ("mismatch", other_sampler), ("group", ones),
    ],
)  # fmt: skip
def test_faults_of_a_dump(fault: str, change: Any, left: Path) -> None:
    run = read(left)
    for row in run.metrics:
        row.pop("mismatch/kl")  # as a trainer that does not log it
    dumps = {i: lambda get=get: planted(change, get()) for i, get in run.dumps.items()}
    run.dumps.clear()  # pyrefly: ignore[missing-attribute]
    run.dumps.update(dumps)  # pyrefly: ignore[missing-attribute]
    assert fault in wrong(of(run))


def log(**series: Any) -> Run:
    """Twelve iterations of a log."""
    rows = [
        {"iteration": i, **{key: value(i) if callable(value) else value
                            for key, value in series.items()}}
        for i in range(1, 13)
    ]  # fmt: skip
    return Run(Path("log"), {}, "", "", rows, [], (), source="TRL")


@pytest.mark.parametrize(
    ("fault", "series"),
    [
        ("rounding", {"numerics/logp_rounding": 2e-3}),
        ("cancellation", {"entropy/exact": -1e-4}),
        ("mismatch", {"mismatch/kl": 0.02}),
        ("mismatch", {"training/rollout_probs_diff_mean": 0.05}),
        ("mismatch", {"sampling/sampling_logp_difference/mean": 0.2}),
        ("ratio", {"kl/old_new": 0.0}),
        ("ratio", {"clip_ratio/region_mean": 0.0}),
        ("ratio", {"clip/low": 0.0, "clip/high": 0.0}),
        ("eos", {"completions/clipped_ratio": 1.0}),
        ("zero_advantage", {"frac_reward_zero_std": 1.0}),
        ("penalties", {"terms/penalised": 0.0}),
    ],
)
def test_faults_of_a_log(fault: str, series: dict[str, Any]) -> None:
    assert wrong(of(log(**series))) == {fault}


@pytest.mark.parametrize(
    "series",
    [
        {"mismatch/kl": 7e-4}, {"kl/old_new": 1e-3}, {"clip_ratio/region_mean": 0.02},
        {"completions/clipped_ratio": 0.9}, {"frac_reward_zero_std": 0.4},
        {"terms/penalised": 2e-3}, {"entropy/exact": 0.3}, {"numerics/logp_rounding": 0.0},
    ],
)  # fmt: skip
def test_logs_without_a_fault(series: dict[str, Any]) -> None:
    assert not wrong(of(log(**series)))


def test_a_share_of_groups_is_no_count() -> None:
    finding = of(log(frac_reward_zero_std=0.1))["zero_advantage"]
    assert finding.evidence.startswith("10% of groups have no signal")


def test_a_file_of_several_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "two.csv"
    rows = [f"{run},{i},0.9,0.5\n" for run in "ab" for i in range(1, 21)]
    path.write_text("run,step,entropy,reward\n" + "".join(rows))
    assert main(["doctor", str(path)]) == 2
    assert "a file has 2 runs; it reads files of one" in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert main(["report", str(path), "--output", str(page)]) == 0
    assert page.exists()


def test_a_gate_that_never_opened(left: Path) -> None:
    run = log(**{"control/entropy_coef": 0.0, "control/target": 0.2, "entropy/exact": 0.9})
    run.config["method"] = ["adaptive_entropy"]
    finding = of(run)["gate"]
    assert finding.wrong
    assert "entropy, 0.9 at least, was never at most 0.2" in finding.evidence


def test_a_controller_at_its_limit(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    row = {"entropy/exact": 0.5, "control/target": 0.9, "control/zeta": 0.1}
    text = "".join(json.dumps({"iteration": i, **row}) + "\n" for i in range(1, 21))
    (run / "metrics.jsonl").write_text(text)
    table = {"name": "repo_r", "zeta_max": 0.1, "target": 0.9}
    (run / "objective.json").write_text(json.dumps({"methods": [table]}))
    finding = of(read(run))["authority"]
    assert finding.wrong
    assert "zeta was at its limit 0.1 in 20 of 20 iterations" in finding.evidence
    assert "zeta_max" in finding.fix


@pytest.mark.parametrize("where", ["trl", "verl/console.log", "verl/file.jsonl"])
def test_other_trainers_logs_are_read(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(FIXTURES / where), "--json"]) in (0, 1)
    assert len(json.loads(capsys.readouterr().out)) == 13


def test_recorded_rollouts_in_the_place_of_sampled_ones(left: Path, tmp_path: Path) -> None:
    """The first iteration's are the untrained policy's: measured again they agree."""
    config = small(tmp_path / "again")
    first = rollouts_at(left)
    assert first.iteration == 1
    findings = {f.name: f for f in examine(config, rollouts=first)}
    assert wrong(findings) == set()
    assert "72 of 72 rollouts ended" in findings["eos"].evidence
    other_sampler(first)
    assert "mismatch" in {f.name for f in examine(config, rollouts=first) if f.wrong}


def test_rollouts_of_another_model(left: Path, tmp_path: Path) -> None:
    strange = load_rollouts(left, 1)
    strange.tokens = strange.tokens + 1000
    strange.pieces = {}
    (tmp_path / "rollouts").mkdir()
    save_rollouts(strange, tmp_path / "rollouts")
    refused(
        lambda: examine(small(tmp_path / "again"), rollouts=rollouts_at(tmp_path)),
        "is none of the model's 1",
    )


def test_a_directory_of_several_runs_is_not_one_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text('{"iteration": 1, "entropy/exact": 1.0}\n')
    assert main(["doctor", str(tmp_path)]) == 2
    assert f"2 runs lie there; name one: {tmp_path / 'a'}, {tmp_path / 'b'}" in (
        capsys.readouterr().err
    )
