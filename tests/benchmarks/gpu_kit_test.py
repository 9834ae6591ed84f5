"""benchmarks/gpu: every stage runs in small on this machine's CPU; a stage that fails is told."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import pytest
import torch

from paths import ROOT
from scripts import load_script

# what each stage must have a result of
CASES = {
    "device": ["token_stats, tiled, bfloat16", "methods on float64"],
    "accuracy": ["errors on extreme rows: entrostat, tiled"],
    "statistics": ["forward: entrostat", "forward and backward: entrostat", "forward, tile"],
    "training": ["target_sum under", "and holds", "fp32: a killed and resumed run"],
    "shape": ["lab, 0.5B shape, bf16", "sampling 8 rollouts, with CUDA graphs"],
    "pass": ["an update's gradients, with the entropy's gradient"],
    "trl": ["lab", "TRL", "lab / TRL", "TRL with our objective / TRL"],
    "precision": ["bf16: a killed and resumed run"],
}


@pytest.fixture(scope="module")
def run():
    return load_script("benchmarks/gpu/run.py")


def test_each_stage_is_tried_here(run):
    assert CASES.keys() == run.STAGES.keys()


def trl_here(run, monkeypatch, tmp_path):
    """The sides that stage `trl` compares, in this process, which has imported what they need."""
    import stage_trl

    bench = load_script("benchmarks/lab_vs_trl.py")

    def child(side, i, flags, asked):
        with warnings.catch_warnings(action="ignore"):  # as in a process of its own
            (tmp_path / side).mkdir()
            return bench.SIDES[side](asked, tmp_path / side)

    def process(words):
        monkeypatch.setattr(sys, "argv", words[1:])
        bench.main()
        return SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr(bench, "child", child)
    monkeypatch.setattr(stage_trl, "subprocess", SimpleNamespace(Popen=process))


@pytest.mark.long
@pytest.mark.parametrize(
    "stage", [pytest.param(s, marks=pytest.mark.slow) if s == "precision" else s for s in CASES]
)
def test_a_stage_in_small(run, stage, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # for the processes that a stage starts
    if stage == "trl":
        trl_here(run, monkeypatch, tmp_path)
    assert run.main(["--tiny", "--device", "cpu", "--stage", stage, "--output", str(tmp_path)]) == 0
    torch.set_num_threads(1)
    rows = run.results(tmp_path)
    cases = [row["case"] for row in rows]
    for wanted in CASES[stage]:
        assert any(wanted in case for case in cases), (wanted, cases)
    assert not [row for row in rows if row["ok"] is False]


def fake(run, monkeypatch, tmp_path, body):
    """Arguments of a kit whose only stage is this function's body, in a copy of the script."""
    (tmp_path / "fake_stage.py").write_text(f"def run(kit):\n    {body}\n")
    stages = 'STAGES = {"device": Stage("fake_stage", "run", 60)}\n'
    script = (ROOT / "benchmarks/gpu/run.py").read_text()
    begin, end = script.index("STAGES = {"), script.index("PACKAGES = ")
    (tmp_path / "run.py").write_text(script[:begin] + stages + script[end:])
    (tmp_path / "kit.py").write_text((ROOT / "benchmarks/gpu/kit.py").read_text())
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "STAGES", {"device": run.Stage("fake_stage", "run", 60)})
    return ["--tiny", "--device", "cpu", "--output", str(tmp_path / "out")]


@pytest.mark.long
def test_a_stage_that_raises_costs_its_own_rows(run, monkeypatch, tmp_path):
    body = 'kit.row("a", True, "b", c=1.5); raise RuntimeError("no such kernel")'
    arguments = fake(run, monkeypatch, tmp_path, body)
    assert run.main(arguments) == 1
    rows = run.results(tmp_path / "out")
    assert rows[1]["figures"] == {"c": 1.5}
    assert (rows[-1]["end"], "no such kernel" in rows[-1]["error"]) == ("failed", True)
    shown = run.table(tmp_path / "out")
    assert "| device | a | c 1.5 | b | yes |" in shown
    assert "| device | failed after" in shown
    # it is tried again, and one that is done is not
    fake(run, monkeypatch, tmp_path, 'kit.row("a")')
    assert run.main(arguments) == 0
    assert run.main(arguments) == 0
    ends = [row["end"] for row in run.results(tmp_path / "out") if "end" in row]
    assert ends == ["failed", "done"]


@pytest.mark.long
def test_a_stage_that_hangs_is_killed_at_the_limit(run, monkeypatch, tmp_path):
    arguments = fake(run, monkeypatch, tmp_path, "import time; time.sleep(600)")
    assert run.main([*arguments, "--seconds", "6"]) == 1
    assert run.results(tmp_path / "out")[-1]["end"] == "out of time"


def test_what_does_not_fit_is_not_begun(run, monkeypatch, tmp_path):
    arguments = fake(run, monkeypatch, tmp_path, 'kit.row("a")')
    assert run.main([*arguments, "--seconds", "1"]) == 1
    assert run.results(tmp_path / "out")[-1]["end"] == "not begun"
