"""Configuration: files, flags and what they say when they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import refused
from entrostat.cli.flags import apply_open_flags, take_open_flags
from entrostat.config import (
    TrainConfig,
    from_dict,
    load,
    merge,
)
from entrostat.study.file import read_study
from entrostat.trainers.lab.state import FIELDS
from paths import ROOT


def test_a_config_survives_its_file(tmp_path: Path) -> None:
    config = from_dict(
        {
            "method": ["grpo", {"name": "repo_r", "target": 0.5, "bidirectional": True}],
            "task": {"name": "gym:chain_sum", "max_terms": 3},
            "optim": {"lr": 1e-5, "betas": [0.9, 0.99]},
            "sampling": {"max_new_tokens": 7},
            "output": 'a "quoted" \\ path',
        }
    )
    (tmp_path / "c.toml").write_text(config.to_toml())
    assert from_dict(load(tmp_path / "c.toml")) == config
    assert from_dict({}) == TrainConfig()


def flags(*words: str, data: dict | None = None) -> TrainConfig:
    rest, found = take_open_flags(list(words))
    assert rest == []
    return from_dict(apply_open_flags(data or {}, found))


def test_open_flags() -> None:
    assert flags("--method", "repo_r").method == ["repo_r"]
    assert flags("--method", "gspo,repo_r").method == ["gspo", "repo_r"]
    assert flags("--method", "gspo", "--method", "repo_r").method == ["gspo", "repo_r"]
    one = flags("--method=repo_r", "--method.bidirectional", "true", "--method.target=0.7")
    assert one.method == [{"name": "repo_r", "bidirectional": True, "target": 0.7}]
    two = flags("--method", "gspo,repo_r", "--method.gspo.high", "5e-4")
    assert two.method == [{"name": "gspo", "high": 5e-4}, "repo_r"]
    assert flags("--method.zeta_max", ".3", data={"method": "repo_r"}).method == [
        {"name": "repo_r", "zeta_max": ".3"}
    ]  # TOML wants 0.3; the method then says that it needs a number
    # only one of them has such a parameter; "grpo" is a recipe of ppo's, "rloo" an estimator
    alone = flags("--method", "grpo,rloo,repo_r", "--method.target", "0.7", "--method.low", "0.1")
    assert alone.method == [
        {"name": "grpo", "low": 0.1}, "rloo", {"name": "repo_r", "target": 0.7},
    ]  # fmt: skip
    task = flags("--task", "gym:chain_sum", "--task.max_terms", "3", "--task.word", "abc").task
    assert task == {"name": "gym:chain_sum", "max_terms": 3, "word": "abc"}
    # a name is read before its parameters, wherever it stands
    turned = flags("--task.k_max", "4", "--method.target", "0.7", "--task", "t", "--method", "m")
    assert (turned.task, turned.method) == (
        {"name": "t", "k_max": 4}, [{"name": "m", "target": 0.7}],
    )  # fmt: skip
    assert flags("--task.k_max", "4").task == {"name": "target_sum", "k_max": 4}
    host = flags(
        "--trl.use_vllm", "true", "--verl.trainer.nnodes", "2", data={"trl": {"beta": 0.0}}
    )
    assert host.trl == {"beta": 0.0, "use_vllm": True}
    assert host.verl == {"trainer.nnodes": 2}  # a key of veRL's stays dotted
    rest, found = take_open_flags(["--seed", "1", "--task", "x", "--optim.lr=2"])
    assert (rest, found) == (["--seed", "1", "--optim.lr=2"], [(["task"], "x")])


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--method", "gspo,adapo", "--method.high", "1"],
         "of which method.*--method.gspo.high or --method.adapo.high"),
        (["--method", "gspo,repo_r", "--method.hihg", "1"],
         "gspo, repo_r: unknown parameter 'hihg'. Did you mean 'high'"),
        (["--method", "gspo,repo_q", "--method.high", "1"], "unknown method 'repo_q'"),
        (["--method", "gspo", "--method.repo.high", "1"], "unknown method for a parameter 'repo'"),
        (["--method"], "--method needs a value"),
        (["--method", "--seed"], "--method needs a value"),
        (["--trl", "vllm"], "--trl sets a key: write --trl.KEY vllm"),
    ],
)  # fmt: skip
def test_bad_open_flags(words: list[str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        flags(*words)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"iteratons": 3}, r"unknown key 'iteratons'. Did you mean 'iterations'\?"),
        ({"optim": {"lrr": 3}}, r"unknown key 'optim.lrr'. Did you mean 'optim.lr'\?"),
        ({"iterations": "3"}, "iterations must be a whole number, got '3'"),
        ({"iterations": True}, "iterations must be a whole number, got True"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"optim": 3}, "optim is a table, got 3"),
        ({"optim": {"lr": 0}}, "optim.lr must be above 0, got 0"),
        ({"optim": {"lr": float("nan")}}, "optim.lr must be above 0"),
        ({"optim": {"betas": [0.9]}}, "optim.betas takes 2 values"),
        ({"sampling": {"top_p": 1.5}}, r"sampling.top_p must be in \(0, 1\], got 1.5"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature must be above 0"),
        ({"precision": "bf17"}, "Did you mean 'bf16'"),
        ({"method": []}, "method is empty"),
        ({"method": [{"low": 1}]}, "each is a name or a table with a name, got {'low': 1}"),
        ({"task": {"seed": 1}}, "task needs a name"),
        ({"device": "tpu"}, "device must be"),
        ({"device": "cuda1"}, "device must be .* got 'cuda1'"),
        ({"scoring": {"timeout": 1e10}}, r"scoring.timeout must be in \(0, 1000000\], got 1000000"),
        ({"host": "vrel"}, "unknown value of host: 'vrel'. Did you mean 'verl'"),
        ({"sampling": {"engine": "vllm"}}, "sampling.engine 'vllm' is for the hosts trl and verl"),
        ({"gradient_checkpointing": 1}, "gradient_checkpointing must be true or false, got 1"),
    ],
)
def test_bad_settings(data: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        from_dict(data)


def test_merge_is_table_by_table_and_a_new_task_starts_afresh() -> None:
    base = {"task": {"name": "gym:a", "size": 3}, "optim": {"lr": 1, "epochs": 2}, "seed": 1}
    over = {"task": {"name": "gym:b"}, "optim": {"lr": 5}}
    assert merge(base, over) == {
        "task": {"name": "gym:b"}, "optim": {"lr": 5, "epochs": 2}, "seed": 1,
    }  # fmt: skip
    assert base["optim"] == {"lr": 1, "epochs": 2}
    assert merge(base, {"task": {"size": 4}})["task"] == {"name": "gym:a", "size": 4}


def test_a_table_beside_evaluation_sets_keeps_them() -> None:
    sets = [{"split": "ood"}]
    both = {"eval": {"sets": sets, "every": 5}}
    assert merge({"eval": sets}, {"eval": {"every": 5}}) == both
    assert merge({"eval": sets}, {"eval": [{"split": "test"}]}) == {"eval": [{"split": "test"}]}


def test_files_that_are_not_there_or_not_toml(tmp_path: Path) -> None:
    refused(lambda: load(tmp_path / "absent.toml"), "cannot read it: No such file")
    (tmp_path / "bad.toml").write_text("seed = 1\nmethod = = 2")
    refused(lambda: load(tmp_path / "bad.toml"), "bad.toml", "line 2")


def test_recipes_that_came_with_the_package_stand_in_for_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tmp_path / "site/entrostat/recipes"
    (shipped / "papers").mkdir(parents=True)
    (shipped / "demo.toml").write_text("seed = 1")
    (shipped / "papers/one.toml").write_text("seed = 2")
    (shipped.parent / "secret.toml").write_text("seed = 3")
    monkeypatch.setattr("entrostat.config.reader.SHIPPED", shipped)
    monkeypatch.chdir(tmp_path)
    assert load("recipes/demo.toml") == {"seed": 1}
    assert load("recipes/papers/one.toml") == {"seed": 2}
    refused(lambda: load("recipes/demmo.toml"), "No such file", "'recipes/demo.toml'")
    for path in ("demo.toml", "papers/one.toml", "recipes/../secret.toml", "secret.toml"):
        with pytest.raises(ValueError, match="No such file or directory"):
            load(path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/demo.toml").write_text("seed = 4")
    assert load("recipes/demo.toml") == {"seed": 4}  # the file here is what is meant


RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_recipes_build(path: Path) -> None:
    from entrostat import make_objective, make_task

    data = load(path)
    configs = list(read_study(path).runs.values()) if "runs" in data else [from_dict(data)]
    for config in configs:
        objective = make_objective(config.method, advantage=config.advantage)
        objective.check_host("lab", FIELDS, config.updates)
        make_task(**config.task)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("title = 'x'", "has no \\[\\[runs\\]\\]"),
        ("[[run]]\nname='a'", "Did you mean 'runs'"),
        ("[[runs]]\nmethod='grpo'", "run 1 needs a name"),
        ("[[runs]]\nname='a'\n[[runs]]\nname='a'", "run 2 needs a name of its own"),
        ("[[runs]]\nname='../a'", "needs a name of its own"),
        ("[[runs]]\nname='a'\nsed=1", "run 'a': unknown key 'sed'"),
        ("jobs=0\n[[runs]]\nname='a'", "jobs must be"),
    ],
)
def test_bad_studies(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(ValueError, match=match):
        read_study(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("study", "there", "same"),
    [
        ({}, {"lr": 3e-4}, True),  # the study leaves it open, the run wrote down its choice
        ({"lr": 1e-4}, {"lr": 1e-4}, True),
        ({"lr": 1e-4}, {"lr": 3e-4}, False),
        ({"lr": 1e-4}, {}, False),
        ({"clip": 0.5}, {"lr": 3e-4}, False),
    ],
)
def test_a_study_notices_a_run_with_other_settings(
    tmp_path: Path, study: dict, there: dict, same: bool
) -> None:
    from contextlib import nullcontext

    from entrostat.study.plan import check_same

    (tmp_path / "config.toml").write_text(from_dict({"optim": there, "output": "x"}).to_toml())
    refusal = pytest.raises(ValueError, match="holds a run with other settings")
    with nullcontext() if same else refusal:
        check_same(tmp_path, from_dict({"optim": study}))
