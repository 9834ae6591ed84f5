"""Subsets of prompts: clusters that are known, draws that are counted, files that train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from builders import json_lines, refused
from entrostat.cli import main
from entrostat.config import TrainConfig
from entrostat.evaluation.subset import (
    SubsetConfig,
    at_random,
    by_clusters,
    by_pass_rate,
    run_subset,
)
from entrostat.model_files import tiny_directory
from entrostat.models.loading import load_policy
from entrostat.models.policy_evaluator import embed
from entrostat.tasks import make_task

CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]])


def clouds(sizes: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around centres that are far apart, shuffled: [n, 2], and the centre of each [n]."""
    rng = np.random.default_rng(seed)
    owner = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return CENTRES[owner] + rng.normal(0, 0.3, (len(owner), 2)), owner


def indices(chosen: list[Any]) -> list[int]:
    return [one.index for one in chosen]


# -------------------------------------------------------------------------------------- clusters


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_clusters_come_first_and_whole(seed: int) -> None:
    x, owner = clouds((5, 20, 9, 14), seed)
    # 20 of cloud 1, 14 of cloud 3: PAR's subsets are such sums
    assert indices(by_clusters(x, 20, 4, seed)) == np.flatnonzero(owner == 1).tolist()
    two = np.flatnonzero((owner == 1) | (owner == 3)).tolist()
    assert indices(by_clusters(x, 34, 4, seed)) == two
    assert indices(by_clusters(x, 48, 4, seed)) == list(range(48))


def test_of_the_last_cluster_those_nearest_to_its_centre_are_taken() -> None:
    x, owner = clouds((5, 20, 9, 14))
    inside = np.flatnonzero(owner == 3)
    centre = x[inside].mean(0)  # K-means' centres are means
    nearest = sorted(inside, key=lambda i: np.linalg.norm(x[i] - centre))[:6]
    chosen = by_clusters(x, 26, 4)
    assert set(indices(chosen)) == set(np.flatnonzero(owner == 1)) | set(nearest)
    (why,) = {one.why for one in chosen if one.index == nearest[0]}
    distance = np.linalg.norm(x[nearest[0]] - centre)
    assert (
        why
        == f"kmeans: cluster 2 of 4 by size (14 prompts), {distance:.4g} from its centre, seed 0"
    )


def test_a_cluster_is_less_diverse_than_as_many_at_random() -> None:
    x, _ = clouds((12, 12, 13, 12))
    spread = [x[indices(some)].std(0).sum() for some in (by_clusters(x, 13, 4), at_random(49, 13))]
    assert spread[0] < spread[1] / 5


def test_equal_seeds_choose_alike_whatever_the_threads() -> None:
    x = np.random.default_rng(0).normal(size=(300, 8))
    first = by_clusters(x, 50, 8, seed=3)
    torch.set_num_threads(2)
    try:
        assert by_clusters(x, 50, 8, seed=3) == first
    finally:
        torch.set_num_threads(1)
    assert at_random(300, 50, seed=3) == at_random(300, 50, seed=3)
    assert at_random(300, 50, seed=3) != at_random(300, 50, seed=4)


def test_a_draw_at_random_is_even() -> None:
    counts = np.zeros(10)
    for seed in range(2000):
        found = indices(at_random(10, 3, seed))
        assert len(set(found)) == 3
        counts[found] += 1
    assert abs(counts - 600).max() < 5 * np.sqrt(2000 * 0.3 * 0.7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.zeros((4, 2)), 5, 2), "--size must be at least 1 and at most 4, got 5"),
        ((np.zeros((4, 2)), 0, 2), "--size must be at least 1"),
        ((np.zeros((4, 2)), 2, 5), "--clusters must be at least 1 and at most 4, got 5"),
        ((np.zeros(4), 2, 2), r"embeddings must be finite, \[n, D\]"),
        ((np.full((4, 2), np.nan), 2, 2), "embeddings must be finite"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        by_clusters(*arguments)


# ------------------------------------------------------------------------------------- pass rate

SCORES = {0: [0, 0, 0, 0], 1: [1, 0, 0, 0], 2: [1, 1, 0, 0.5], 3: [1, 1, 1, 0], 4: [1, 1, 1, 1]}


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, [1, 2, 3]),
        ({"low": 0.0}, [0, 1, 2, 3]),
        ({"high": 1.0}, [1, 2, 3, 4]),
        ({"low": 0.25, "high": 0.5}, [1, 2]),
        ({"low": 0.3, "high": 0.7}, [2]),
    ],
)
def test_bounds_of_the_pass_rate(bounds: dict[str, float], expected: list[int]) -> None:
    assert indices(by_pass_rate(SCORES, **bounds)) == expected


def test_a_pass_rate_counts_right_responses_alone() -> None:
    assert [one.why for one in by_pass_rate(SCORES)] == [
        "pass_rate: 0.25 of 4 responses", "pass_rate: 0.5 of 4 responses",
        "pass_rate: 0.75 of 4 responses",
    ]  # fmt: skip
    chosen = indices(by_pass_rate(SCORES, size=2, seed=1))
    assert len(chosen) == 2
    assert set(chosen) < {1, 2, 3}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"low": 0.9, "high": 0.95}, "no prompt of 5 has a pass rate from 0.9 to 0.95; widen"),
        ({"low": 1.5}, r"--low must be in \[0, 1\], got 1.5"),
        ({"size": 4}, "--size must be at least 1 and at most 3, got 4"),
    ],
)
def test_bounds_that_leave_nothing_are_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        by_pass_rate(SCORES, **how)


# ------------------------------------------------------------------------------------- embeddings


def test_an_embedding_is_the_mean_of_the_prompts_own_last_hidden_states() -> None:
    directory = tiny_directory()
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    policy = load_policy(TrainConfig())
    prompts = [policy.encode(text, False, "") for text in ("23/4:", "7/3:", "1+2+3:", "9")]
    found = embed(policy, prompts, batch=3)
    assert tokenizer("23/4:")["input_ids"][: len(prompts[0])] == prompts[0]
    for ids, vector in zip(prompts, found, strict=True):
        with torch.no_grad():
            alone = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        assert vector == pytest.approx(alone.double().mean(0).numpy(), abs=1e-4)


# --------------------------------------------------------------------------------------- the verb


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Prompts of `target_sum`; those of even places are of another, longer kind."""
    path = tmp_path / "my.jsonl"
    lines = []
    for i in range(40):
        prompt = f"{20 + i % 7}/4:" if i % 4 else "+".join("123456789")[: 9 + i % 3] + ":"
        lines.append({"prompt": prompt, "answer": str(i)})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_kmeans_writes_the_larger_kind_and_the_file_is_a_task(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "narrow.jsonl"
    words = ["subset", str(data), "--task.test", "0", "--by", "kmeans", "--model", "tiny"]
    words += ["--clusters", "2", "--size", "30", "--output", str(out)]
    assert main(words) == 0
    assert "30 of 40 prompts" in (said := capsys.readouterr().out)
    assert f"entrostat train --task {out} --task.grader exact" in said
    found = json_lines(out)
    assert [row["index"] for row in found] == [i for i in range(40) if i % 4]
    assert all(row["prompt"] == json_lines(data)[row["index"]]["prompt"] for row in found)
    assert all(row["why"].startswith("kmeans: cluster 1 of 2 by size (30") for row in found)
    task = make_task(str(out), test=0.0)
    assert task.size("train") == 30
    assert task.example(0, "train").answer == "1"
    before = out.read_bytes()
    assert main(words) == 0
    assert out.read_bytes() == before


def test_pass_rates_are_read_from_an_evaluations_responses(data: Path, tmp_path: Path) -> None:
    responses = tmp_path / "evals/model/responses/my_train.jsonl"
    responses.parent.mkdir(parents=True)
    prompts = [row["prompt"] for row in json_lines(data)]
    lines = [
        {"problem": i, "prompt": prompts[i], "scores": [1.0] * (i % 5) + [0.0] * (4 - i % 5)}
        for i in range(40)
    ]
    responses.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {"name": str(data), "test": 0.0}
    out = str(tmp_path / "out.jsonl")
    config = SubsetConfig(by="pass_rate", responses=str(tmp_path / "evals"), low=0.5, output=out)
    subset = run_subset(task, config)
    assert [row["index"] for row in json_lines(subset.path)] == [
        i for i in range(40) if i % 5 in (2, 3)
    ]
    assert (subset.size, subset.of) == (16, 40)
    lines[3]["prompt"] = "another"
    responses.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused(lambda: run_subset(task, config), "'my'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--by", "kmean", "--size", "3"], "unknown way to choose, --by 'kmean'. Did you mean"),
        (["--by", "random"], "--by random needs --size"),
        (["--by", "kmeans", "--size", "3"], "name it with --model"),
        (["--by", "pass_rate"], "--by pass_rate takes responses"),
        (["--by", "pass_rate", "--responses", "."], "there is no responses/SET.jsonl"),
        (["--split", "tset", "--size", "3"], "unknown split of task 'my': 'tset'. Did you mean"),
        (["--sise", "3"], "Did you mean '--size'"),
        (["--size", "99"], "--size must be at least 1 and at most 36, got 99"),
        (["--size", "3", "--prompts", "-1"], "--prompts must be at least 1, got -1"),
        (["--size", "3", "--seed", "-1"], "--seed must be at least 0, got -1"),
    ],
)
def test_bad_words_are_refused_in_a_line(
    data: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(data.parent)
    assert main(["subset", str(data), *words]) == 2
    assert said in capsys.readouterr().err


def test_a_task_that_a_file_cannot_hold_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subset", "target_sum", "--size", "3"]) == 2
    assert "has no end: say how many to choose from, --prompts" in capsys.readouterr().err
    assert main(["subset", "target_sum", "--size", "3", "--prompts", "9"]) == 2
    assert "the answer to prompt 0 is neither text nor a number" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subset"]) == 2
    assert "Examples:" in capsys.readouterr().out
    for words in (["--help"], ["my.jsonl", "--help"]):
        assert main(["subset", *words]) == 0
        assert "--clusters N" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["subset", "my.jsonl", "--help-all"])
    assert "--clusters {None}|INT" in capsys.readouterr().out
