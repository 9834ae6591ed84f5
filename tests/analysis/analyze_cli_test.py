"""`entrostat report` and `entrostat law` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrostat.cli import main
from paths import TESTS

pytestmark = pytest.mark.usefixtures("unrendered")

FIXTURES = TESTS / "importers"


def test_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{1 - i / 50},{i / 40}" for i in range(1, 31)]
    Path("log.csv").write_text("\n".join(["update,H,right", *rows, "31,oops,1"]))
    assert main(["report", "log.csv", "--step", "update", "--entropy", "H", "--score=right"]) == 0
    out = capsys.readouterr().out
    assert "source: " in out
    assert "log.csv:32" in out
    page = Path("log.csv.report.html").read_text()
    assert "cannot be known" in page
    assert "<script>" in page or "Content-Security-Policy" in page


def test_trl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = min(FIXTURES.rglob("trainer_state.json"))
    assert main(["report", str(state), "--output", "trl.html"]) == 0
    assert "source: TRL" in capsys.readouterr().out
    assert Path("trl.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["report", "nowhere"], "'nowhere' is neither a file nor a directory"),
        (["report", "a", "b"], "is neither a file nor a directory"),
        (["report", "x", "--format", "comet"], "format 'comet' is unknown"),
        (["law", "nowhere"], "'nowhere' is neither a file nor a directory"),
        (["law", "x", "--share", "much"], "--share must be a number from 0 to 1, got 'much'"),
        (["law", "x", "--scores", "a"], "unknown option '--scores'"),
        (["train", "--analyze.each", "10"], "--analyze.each"),
        (["train", "--analyze.every", "-1"], "analyze.every must be at least 0, got -1"),
    ],
)
def test_bad_input(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["report", "law"])
def test_help_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert "Example" in capsys.readouterr().out
    assert main([verb]) == 2


def test_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """R = -.3 exp(H) + 1.1 exactly: the fit says so, ceiling .8."""
    from math import exp

    run = tmp_path / "run"
    run.mkdir()
    entropies = [1.0 - 0.015 * i for i in range(60)]
    lines = [
        {"iteration": i, "entropy/exact": h, "reward/mean": -0.3 * exp(h) + 1.1}
        for i, h in enumerate(entropies, 1)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = tmp_path / "law.json"
    assert main(["law", str(run), "--output", str(output)]) == 0
    assert "0.80" in capsys.readouterr().out
    (found,) = json.loads(output.read_text())["runs"]
    assert found["a"]["value"] == pytest.approx(0.3)
    assert found["b"]["value"] == pytest.approx(1.1)
