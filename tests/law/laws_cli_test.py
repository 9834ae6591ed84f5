"""`run_law` over run directories made to follow a known law."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from builders import refused
from entrostat.cli import main
from entrostat.study.laws import _median, doubts_told, run_law


def entropies(n: int, start: float = 0.9, end: float = 0.1) -> list[float]:
    return [end + (start - end) * math.exp(-3 * i / n) for i in range(n)]


def make_run(
    path: Path,
    a: float = 0.4,
    b: float = 1.1,
    *,
    n: int = 60,
    key: str = "entropy/exact",
    model: str = "tiny",
    evaluations: list[dict] | None = None,
    **more: float,
) -> str:
    """A run whose reward is b - a exp(H) of the entropy called `key`."""
    path.mkdir(parents=True)
    lines = [
        {"iteration": i, key: h, "reward/mean": b - a * math.exp(h), **more}
        for i, h in enumerate(entropies(n), 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "config.toml").write_text(f'method = "grpo"\nmodel = "{model}"\n')
    if evaluations:
        (path / "evaluation.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in evaluations)
        )
    return str(path)


def out_of(path: Path) -> dict:
    return json.loads(path.read_text())


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = make_run(tmp_path / "one")
    assert run_law([run], output=str(tmp_path / "new" / "law.json")) == 0
    text = capsys.readouterr().out
    assert "R: training reward, reward/mean\n" in text
    assert "R is the training reward, not COV's validation score: the run has no eval" in text
    assert "H: entropy of the training rollouts, exact\n" in text
    assert "steps: 60 iterations, the first 9 predict\n" in text
    assert "fitted to the first 15%" in text
    data = out_of(tmp_path / "new" / "law.json")
    assert (data["score"], data["share"], data["sizes"]) == ("reward/mean", 0.15, None)
    assert data["entropy"] == "entropy/exact"
    (found,) = data["runs"]
    assert found["a"]["value"] == pytest.approx(0.4)
    assert found["b"]["value"] == pytest.approx(1.1)
    assert found["ceiling"]["value"] == pytest.approx(0.7)
    assert found["ceiling"]["interval"] == pytest.approx([0.7, 0.7])
    assert found["r2"] == pytest.approx(1.0)
    assert found["early"]["steps"] == 9
    assert found["early"]["end_steps"] == 4  # a fifteenth
    assert found["early"]["ceiling"] == pytest.approx(0.7)
    assert found["early"]["rmse"] == pytest.approx(0, abs=1e-12)
    for doubt in found["doubts"]:
        assert f"grpo: {doubt}" in text


def test_how_early_is_not_made_by_one_run() -> None:
    assert _median([0.2, float("nan"), 9.0, 0.3]) == "30%"
    assert _median([0.2, -9.0, 0.3, 0.4]) == "25%"
    assert _median([float("nan")]) == "-"


def test_doubts_of_many_runs_are_told_once_a_kind() -> None:
    above, low = "The ceiling {} is above 1: so.", "R^2 is {}, below 0.7: so."
    found = [
        ("a", [above.format(1.5), low.format(0.25)]), ("b", [above.format("1.2e+03")]), ("c", []),
        ("d", [above.format(-1)]), ("e", []), ("f", [above.format(2), "Odd."]),
    ]  # fmt: skip
    assert doubts_told(found) == [
        "4 of 6 runs, as a: The ceiling 1.5 is above 1: so. Also b, d, f.",
        "2 of 6 runs, as c: nothing speaks against the law. Also e.",
        "a: R^2 is 0.25, below 0.7: so.", "f: Odd.",
    ]  # fmt: skip
    assert doubts_told(found[:3]) == [
        "a: The ceiling 1.5 is above 1: so.", "a: R^2 is 0.25, below 0.7: so.",
        "b: The ceiling 1.2e+03 is above 1: so.", "c: nothing speaks against the law.",
    ]  # fmt: skip
    many = doubts_told([(str(i), ["x 1"]) for i in range(10)])
    assert many == ["10 of 10 runs, as 0: x 1 Also 1, 2, 3, 4 and 5 more."]
    many = doubts_told([(str(i), ["x 1"]) for i in range(6)])
    assert many == ["6 of 6 runs, as 0: x 1 Also 1, 2, 3, 4, 5."]


def test_the_table_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = [make_run(tmp_path / f"grpo-{i}", b=1.1 + i) for i in range(3)]
    assert run_law(runs) == 0
    text = capsys.readouterr().out
    table = text.split("ceiling: b - a")[0]
    assert "…" not in table
    for i in range(3):
        assert f"grpo-{i} " in table
    assert "0.70..0.70" in table
    rows = table[table.index("R = -a exp(H)") :].split("\n")
    assert max(map(len, rows)) <= 80
    # in-sample and predicted error beside each other, each named
    place = next(i for i, row in enumerate(rows) if "in-sample" in row)
    assert rows[place - 1].count("RMSE") == 2
    names = rows[place].split()
    assert names[names.index("in-sample") + 1] == "predicted"


def test_a_directory_of_runs_stands_for_them_and_their_names_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where numbers leave no room for a name the table is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("abcdef", "uvwxyz"):
        make_run(tmp_path / "study" / name, b=-1.1)
    (tmp_path / "study/report.html").write_text("")
    assert run_law([str(tmp_path / "study")]) == 0
    text = capsys.readouterr().out
    table = text.split("ceiling: b - a")[0]
    for name in ("abcdef", "uvwxyz"):
        assert any(line.split()[:1] == [name] for line in table.splitlines())
    assert "…" not in table
    assert table.count(" -1.50 ") == 2  # b - a, the ceilings
    assert "exp(H) -1.100" in text
    assert "--" not in text


def test_entropy_is_taken_in_order_and_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    # a constant under another name must not be taken
    first = make_run(tmp_path / "exact", **{"entropy/nll": 5.0, "entropy/logged": 5.0})
    second = make_run(tmp_path / "nll", key="entropy/nll", **{"entropy/logged": 5.0})
    third = make_run(tmp_path / "logged", key="entropy/logged")
    assert run_law([first, second, third], output=str(tmp_path / "o.json")) == 0
    text = capsys.readouterr().out
    assert "exact: H: entropy of the training rollouts, exact\n" in text
    assert "nll: H: entropy of the training rollouts, sampled, mean of -log p\n" in text
    assert "logged: H: entropy of the training rollouts, as logged\n" in text
    assert "steps: 60 iterations, the first 9 predict" in text.split("\n")  # all have that
    assert "different scores or entropies" in text
    assert out_of(tmp_path / "o.json")["entropy"] is None
    assert out_of(tmp_path / "o.json")["score"] == "reward/mean"
    for found in out_of(tmp_path / "o.json")["runs"]:
        assert found["a"]["value"] == pytest.approx(0.4)


def test_another_metric_as_score(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", **{"reward/best": 0.0})
    lines = [
        json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().split("\n")[:-1]
    ]
    for line in lines:
        line["reward/best"] = 2.0 - 0.1 * math.exp(line["entropy/exact"])
    del lines[10]["reward/best"]  # a step without the score is left out
    (Path(run) / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_law([run], score="reward/best", output=str(tmp_path / "o.json"))
    (found,) = out_of(tmp_path / "o.json")["runs"]
    assert found["steps"] == 59
    assert found["ceiling"]["value"] == pytest.approx(1.9)


def evaluations(a: float, b: float, own_entropy: bool) -> list[dict]:
    """Every tenth iteration from 0 on; the policy after e is that of the rollouts of e + 1."""
    curve = entropies(60)
    rows = []
    for e in range(0, 60, 10):
        # the evaluation's own entropy is another number than that of the rollouts
        h = curve[e] / 2 if own_entropy else curve[e]
        for split, shift in (("test", 0.0), ("ood", -0.5)):
            row = {"iteration": e, "split": split, "avg@k": b + shift - a * math.exp(h)}
            rows.append(row | ({"entropy": h} if own_entropy else {}))
    return rows


@pytest.mark.parametrize("own", [True, False])
def test_evaluations_as_score(own: bool, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = make_run(tmp_path / "one", a=9, b=9, evaluations=evaluations(0.3, 1.0, own))
    entropy = "evaluation" if own else "rollouts"
    for score, b in (("avg@k", 1.0), ("validation", 1.0), ("ood/avg@k", 0.5)):
        run_law([run], score, 0.5, str(tmp_path / "o.json"), entropy)
        (found,) = out_of(tmp_path / "o.json")["runs"]
        assert found["steps"] == 6
        assert found["a"]["value"] == pytest.approx(0.3)
        assert found["b"]["value"] == pytest.approx(b)
        assert found["early"]["steps"] == 3
    text = capsys.readouterr().out
    where = "the evaluation's samples of ood" if own else "the training rollouts, exact"
    assert f"H: entropy of {where}\n" in text
    assert "R: validation score, avg@k of ood\n" in text
    assert "steps: 6 evaluations, the first 3 predict\n" in text


def test_the_entropy_of_held_out_prompts_is_another_law(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """R = .8 - .2 exp(H), H of the rollouts; the evaluation's prompts keep their entropy."""
    curve = entropies(60)
    rows = [
        {"iteration": e, "split": "test", "k": 8, "avg@k": 0.8 - 0.2 * math.exp(curve[e]),
         "entropy": 0.6 + 0.1 * curve[e]}
        for e in range(0, 60, 4)
    ]  # fmt: skip
    run = make_run(tmp_path / "one", a=9, b=9, evaluations=rows)
    found = {}
    for words in ([], ["--entropy", "evaluation"], ["--score", "training"]):
        assert main(["law", run, *words, "--output", str(tmp_path / "o.json")]) == 0
        (found[" ".join(words)],) = out_of(tmp_path / "o.json")["runs"]
    own, other, training = found.values()
    assert (own["a"]["value"], own["ceiling"]["value"]) == pytest.approx((0.2, 0.6))
    assert (own["score"], own["entropy"], own["steps"]) == ("test/avg@k", "entropy/exact", 15)
    assert own["notes"] == []
    assert other["a"]["value"] > 1
    assert other["entropy"] == "test/entropy"
    assert (training["a"]["value"], training["score"]) == (pytest.approx(9), "reward/mean")
    assert "R: validation score, avg@8 of test\n" in capsys.readouterr().out


def test_a_misspelt_figure_of_the_evaluations_is_guessed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", evaluations=evaluations(0.3, 1.0, True))
    refused(lambda: run_law([run], score="ood/avgk"), "'ood/avgk'", "'ood/avg@k'")


def test_too_few_steps_for_an_early_prediction(tmp_path: Path, capsys) -> None:
    run = make_run(tmp_path / "one", n=10)
    assert run_law([run], output=str(tmp_path / "o.json")) == 0
    assert (
        "No early prediction: the first 15% of 10 steps are 2, and a fit needs 3; it takes a run "
        "of 14 steps or more.\n"
    ) in capsys.readouterr().out
    assert out_of(tmp_path / "o.json")["runs"][0]["early"] is None


def weights(directory: Path, body: int) -> None:
    directory.mkdir(parents=True)
    tensors = {
        "model.embed_tokens.weight": np.zeros((100, 4), np.float32),
        "lm_head.weight": np.zeros((100, 4), np.float32),
        "model.layers.0.mlp.up_proj.weight": np.zeros((body, 4), np.float16),
        "model.norm.weight": np.zeros(8, np.float32),
    }
    save_file(tensors, directory / "model.safetensors")


def test_sizes_are_counted_without_embeddings(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    runs = []
    for i, (body, a) in enumerate(((10, 0.1), (98, 0.2), (998, 0.3))):
        runs.append(make_run(tmp_path / f"r{i}", a=a, b=1.0))
        weights(tmp_path / f"r{i}" / "final", body)
    assert run_law(runs, output=str(tmp_path / "o.json")) == 0
    sizes = out_of(tmp_path / "o.json")["sizes"]
    assert sizes["sizes"] == [48, 400, 4000]  # 4 body + 8
    expected = np.polyfit(np.log([48, 400, 4000]), [0.1, 0.2, 0.3], 1)
    assert [sizes["a"]["slope"], sizes["a"]["intercept"]] == pytest.approx(expected)
    assert sizes["b"]["slope"] == pytest.approx(0, abs=1e-9)
    assert "coefficients against the model's size" in capsys.readouterr().out


def test_sizes_by_name_and_what_is_said_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    runs = [
        make_run(tmp_path / "a", a=0.1, model="Qwen/Qwen2.5-0.5B"),
        make_run(tmp_path / "b", a=0.2, model="Qwen/Qwen2.5-7B-Instruct"),
        make_run(tmp_path / "c", a=0.3, model="HuggingFaceTB/SmolLM2-135M"),
        make_run(tmp_path / "d", a=0.3, model="tiny"),
        make_run(tmp_path / "e", a=0.3, model="mixtral-8x7B"),  # not 7 billion
    ]
    runs.append(make_run(tmp_path / "f", a=0.2))
    weights(tmp_path / "f" / "final", 10)
    assert run_law(runs, output=str(tmp_path / "o.json")) == 0
    found = out_of(tmp_path / "o.json")["sizes"]
    # the policy that ships: 149,248 without its 15 embeddings of 64
    assert found["sizes"] == [5e8, 7e9, 1.35e8, 148_288, 48]
    assert found["runs"] == ["a", "b", "c", "d", "f"]
    text = capsys.readouterr().out
    assert "sizes: Some sizes are counted without embeddings, others read off" in text
    assert "sizes: Left out, their model's size is unknown: e." in text


def test_a_run_that_cannot_be_fitted_is_named_and_the_others_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    good, short = make_run(tmp_path / "good"), make_run(tmp_path / "short", n=2)
    assert run_law([good, short], output=str(tmp_path / "o.json")) == 1
    assert (
        "short: not fitted: there are 2 steps, and two coefficients need 3"
        in capsys.readouterr().out
    )
    assert list(out_of(tmp_path / "o.json")["not_fitted"]) == ["short"]
    refused(lambda: run_law([short]), "'grpo'")


def test_a_score_that_never_moves_is_written_as_null(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", a=0.0, b=0.5)
    assert run_law([run], output=str(tmp_path / "o.json")) == 0
    (found,) = out_of(tmp_path / "o.json")["runs"]
    assert found["r2"] is None
    assert "The score never moved; there is nothing to explain." in found["doubts"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"paths": []}, "law needs the directory of a run"),
        ({"share": 15.0}, "--share must be between 0 and 1, got 15.0; the paper's is 0.15"),
        ({"score": "reward/men"}, "run 'one', --score: unknown score 'reward/men'. Did you mean"),
        ({"entropy": "entropy/exac"}, "--entropy: unknown entropy 'entropy/exac'. Did you mean"),
        ({"paths": ["nowhere"]}, "'nowhere' is neither a file nor a directory"),
    ],
)
def test_bad_arguments(arguments: dict, words: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    with pytest.raises(ValueError, match=words):
        run_law(**({"paths": [run]} | arguments))


def test_a_run_without_entropy_or_reward(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", key="other/key")
    refused(lambda: run_law([run]), "logs no entropy of its rollouts", "one of entropy")
    path = tmp_path / "two"
    path.mkdir()
    line = {"iteration": 1, "entropy/exact": 1.0, "score/mine": 2.0}
    (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    refused(lambda: run_law([str(path)]), "reward/mean", "score/mine")


def test_one_law_for_all_and_what_else_explains(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    runs = [make_run(tmp_path / name, a=a, b=1.0) for name, a in (("x", 0.1), ("y", 0.3))]
    assert run_law(runs, output=str(tmp_path / "o.json")) == 0
    data = out_of(tmp_path / "o.json")
    for run in data["runs"]:
        assert [each["of"] for each in run["rivals"]] == ["exp(H)", "H", "step"]
        # the runs are made of the law, so that nothing else does as well
        assert run["rivals"][0]["rmse"] < min(each["rmse"] for each in run["rivals"][1:])
        assert run["rivals"][0]["rmse_predicted"] == pytest.approx(run["early"]["rmse"])
    # equal entropies: one law for both is halfway, and each the other's
    together = data["together"]
    assert together["a"] == pytest.approx(0.2)
    assert together["rmse_one"] > 100 * together["rmse_own"]
    text = capsys.readouterr().out
    assert "one law for 2 runs" in text
    assert "what else explains the score" in text
    assert "8% of the steps" in text
    assert run_law(runs[:1], output=str(tmp_path / "o.json")) == 0
    assert out_of(tmp_path / "o.json")["together"] is None
    assert "one law for" not in capsys.readouterr().out
