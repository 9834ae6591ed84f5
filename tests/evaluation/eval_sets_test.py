"""`[[eval]]`: several sets with their own settings in training, and the best policy kept.

The truth: what one `[eval]` table gives for the same settings, transformers' own greedy decoding,
and for `best/` a search through the scores written down by hand.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from builders import json_lines, refused
from entrostat.cli import main
from entrostat.config import TrainConfig, from_dict, load
from entrostat.errors import RunStopped
from entrostat.logs.files import replacing
from entrostat.logs.run import best_of, read_run
from entrostat.model_files import tiny_directory
from entrostat.report.page import write_run_report
from entrostat.runs.best_checkpoint import BestCheckpoint, go_back
from entrostat.runs.run_directory import RunDirectory
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers import trains
from entrostat.trainers.lab import train
from lab_runs import metrics
from lab_runs import small as small_run
from scripts import load_script
from stopping import Stop, StopAfter


def small(output: Path, **changes: Any) -> TrainConfig:
    sampling = {"prompts": 4, "rollouts": 4}
    return small_run(output, **({"sampling": sampling, "save": {"rollouts_every": 0}} | changes))


def rows(run: Path, name: str | None = None, file: str = "evaluation.jsonl") -> list[dict]:
    found = json_lines(run / file)
    return [row for row in found if name in (None, row["set"])]


def pairs(path: Path, prompts: int = 6) -> Path:
    """A file of `target_sum` prompts, each with one of its right answers."""
    task, lines = TargetSum(), []
    for i in range(prompts):
        example = task.example(i, "test")
        target, k = example.answer
        digits = [target // k + (place < target % k) for place in range(k)]
        lines.append({"prompt": example.prompt, "answer": "+".join(map(str, digits))})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


SETS = [
    {"prompts": 3, "samples": 4, "every": 1},
    {"split": "ood", "prompts": 5, "temperature": 0, "max_new_tokens": 17},
    {"name": "hot", "split": "test", "prompts": 2, "samples": 3, "every": 2, "temperature": 1.5,
     "top_p": 0.9},
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sets")
    file = {"task": {"name": str(pairs(path / "held.jsonl")), "test": 0.5}, "samples": 2,
            "max_new_tokens": 13}  # fmt: skip
    return train(small(path / "run", eval=[*SETS, file], save={"best": "test/avg@k"}))


def test_each_set_is_evaluated_when_it_asks_and_keeps_its_name(run: Path) -> None:
    of_set: dict[str, list[int]] = {}
    for row in rows(run):
        of_set.setdefault(row["set"], []).append(row["iteration"])
    assert of_set == {"test": [0, 1, 2, 3, 4], "ood": [0, 4], "hot": [0, 2, 4], "held": [0, 4]}
    assert {(r["set"], r["split"], r["prompts"], r["k"]) for r in rows(run)} == {
        ("test", "test", 3, 4), ("ood", "ood", 5, 1), ("hot", "test", 2, 3), ("held", "test", 3, 2),
    }  # fmt: skip
    for name, prompts, times in (("test", 3, 5), ("ood", 5, 2), ("hot", 2, 3), ("held", 3, 2)):
        assert len(rows(run, name, "answers.jsonl")) == prompts * times


@pytest.mark.long
def test_a_set_is_what_the_one_table_gives_with_its_settings(run: Path, tmp_path: Path) -> None:
    table = {"prompts": 3, "samples": 4, "every": 1}
    other = train(small(tmp_path / "run", eval=table))
    assert rows(other, "test") == rows(run, "test")
    assert metrics(other) == metrics(run)  # what is evaluated changes nothing of the training
    hot = train(small(tmp_path / "hot", eval={"prompts": 2, "samples": 3},
                      sampling={"temperature": 1.5, "top_p": 0.9}))  # fmt: skip
    mine, theirs = rows(run, "hot")[0], rows(hot, "test")[0]
    for key in ("avg@k", "pass@k", "distinct"):  # the same samples, before training
        assert mine[key] == theirs[key]
    assert mine["entropy"] != theirs["entropy"]  # of the policy at the run's temperature, 1
    cold = train(small(tmp_path / "cold", eval={"prompts": 2, "samples": 3}))
    assert mine["prompt_entropy"] == pytest.approx(rows(cold, "test")[0]["prompt_entropy"])


@pytest.mark.long
def test_temperature_zero_is_greedy_decoding(tmp_path: Path) -> None:
    greedy = {"prompts": 32, "temperature": 0, "max_new_tokens": 13}
    run = train(small(tmp_path / "run", iterations=1, eval=[greedy]))
    directory = tiny_directory()
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    task, right = TargetSum(), []
    for i in range(32):
        example = task.example(i, "test")
        ids = tokenizer(example.prompt, return_tensors="pt")["input_ids"]
        while ids[0, -1] == tokenizer.eos_token_id:
            ids = ids[:, :-1]
        said = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=13,
            pad_token_id=tokenizer.eos_token_id,
        )[0, ids.shape[1] :]  # fmt: skip
        text = tokenizer.decode(said, skip_special_tokens=True)
        right.append(task.score(text, example))
    assert sum(right) > 24  # of samples at temperature 1 not half are right
    assert rows(run, "test")[0]["avg@k"] == sum(right) / 32
    assert [line["wrong"] for line in rows(run, "test", "answers.jsonl")[:32]] == [
        1 - score for score in right
    ]


def test_the_page_tells_sets_apart_and_marks_the_best(
    run: Path, tmp_path: Path, unrendered: None
) -> None:
    read = read_run(run)
    assert [row["split"] for row in read.evaluation][:4] == ["test", "ood", "hot", "held"]
    scores = {row["iteration"]: row["avg@k"] for row in rows(run, "test")}
    first = min(i for i in scores if scores[i] == max(scores.values()))
    assert read.best is not None
    assert (read.best["iteration"], read.best["value"]) == (first, max(scores.values()))
    html = write_run_report(run, tmp_path / "page.html").read_text()
    assert f"iteration {first}, test/avg@k {max(scores.values()):.4g}" in html
    marks = [line for line in html.splitlines() if "kept in best/" in line]
    assert len(marks) == 1
    assert f'<th scope="row">{first}</th><td class="left">test' in marks[0]


# --------------------------------------------------------------------------------- configuration


def test_a_list_of_tables_is_read_written_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[[eval]]\nsplit = "ood"\ntask = "words"\n[[eval]]\nsamples = 3\n')
    config = from_dict(load(file))
    assert [one.task for one in config.eval.sets] == [{"name": "words"}, None]
    assert [(e.samples, e.prompts) for e in config.eval.resolved] == [(16, 64), (3, 64)]
    file.write_text(config.to_toml())
    assert from_dict(load(file)) == config


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([{"split": "tset"}], r"\[\[eval\]\] 1: unknown split of task 'target_sum': 'tset'. Did"),
        ([{}, {}], r"2 sets are called 'test'; name them"),
        ([{}, {"name": "test", "split": "ood"}], r"2 sets are called 'test'; name them"),
        ([{"temperature": 0, "samples": 4}], "temperature 0 gives the same answer 4 times"),
        ([{"temperature": -1.0}], r"temperature must be at least 0, got -1"),
        ([{"top_p": 0.0}], r"top_p must be in \(0, 1\], got 0"),
        ([{"samples": 0}], r"\[\[eval\]\] 1: samples must be at least 1"),
        ([{}, {"every": -1}], r"\[\[eval\]\] 2: every must be at least 0"),
        ([{"sample": 2}], r"unknown key 'eval.sets\[0\].sample'. Did you mean 'eval.sets\[0\]"),
        ([{"samples": "4"}], r"eval.sets\[0\].samples must be a whole number, got '4'"),
        ([3], "eval.sets takes a list of tables"),
        ([{"task": 3}], r"eval.sets\[0\].task must be a table, got 3"),
        ([{"task": {"test": 0.5}}], r"\[\[eval\]\] 1: task needs a name"),
        ([{"name": ""}], "name is empty"),
        ([{"task": "no_such"}], r"\[\[eval\]\] 1: unknown task 'no_such'"),
        ([{"max_new_tokens": 4000}], r"\[\[eval\]\] 'test': a prompt of \d+ tokens and 4000"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_run(
    tmp_path: Path, sets: list[Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        train(small(tmp_path / "run", eval=sets))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"save": {"best": "tset/avg@k"}}, "unknown figure for save.best: 'tset/avg@k'. Did you"),
        ({"save": {"best": "test/avg@16"}}, "Did you mean 'test/avg@k'"),
        ({"save": {"best": "test/avg@k,test/avg@9"}}, "save.best: 'test/avg@9'"),
        ({"save": {"best": "test/avg@k"}, "eval": {"prompts": 0}}, "the run evaluates nothing"),
    ],
)
def test_a_best_that_cannot_be_kept_is_refused(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(small(tmp_path / "run", **changes))


def test_code_that_a_set_names_takes_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ('task = "evil:Task"', 'task = {name = "a.jsonl", grader = "evil:grade"}'):
        (tmp_path / "a.toml").write_text(f"[[eval]]\nprompts = 2\n[[eval]]\n{table}\n")
        assert main(["train", "--config", str(tmp_path / "a.toml")]) == 2
        assert "eval 2.task" in (said := capsys.readouterr().err)
        assert "is code outside entrostat" in said


@pytest.mark.long
def test_flags_say_what_sets_leave_open(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(
        "iterations = 1\n[sampling]\nprompts = 2\nrollouts = 2\n[[eval]]\nprompts = 2\n"
        '[[eval]]\nsplit = "ood"\nsamples = 3\n'
    )
    words = ["train", "--config", str(file), "--eval.samples", "2", "--eval.prompts", "1"]
    assert main([*words, "--output", str(tmp_path / "run")]) == 0
    assert [(r["set"], r["prompts"], r["k"]) for r in rows(tmp_path / "run")[:2]] == [
        ("test", 2, 2), ("ood", 1, 3),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ best/


def saver(text: str) -> Any:
    return lambda directory: (directory / "model.safetensors").write_text(text)


def state_of(run: Path) -> tuple[int, str] | None:
    found = best_of(run / "best")
    return found and (found["iteration"], (run / "best/model.safetensors").read_text())


def scored(iteration: int, score: float | None) -> list[dict[str, Any]]:
    other = {"iteration": iteration, "set": "ood", "avg@k": 1.0}
    return [other, {"iteration": iteration, "set": "test", "avg@k": score}]


@pytest.mark.parametrize("seed", range(30))
def test_the_best_is_that_of_the_log_wherever_a_run_is_killed(tmp_path: Path, seed: int) -> None:
    """Evaluations, checkpoints and kills at random; the truth is the first highest of the log."""
    rng = random.Random(seed)
    scores = [rng.choice([0.1, 0.2, 0.3, 0.4, 0.5, None]) for _ in range(12)]

    def truth(iteration: int) -> tuple[int, str] | None:
        known = [(-s, i) for i, s in enumerate(scores[: iteration + 1]) if s is not None]
        return (i := min(known)[1], str(i)) if known else None

    iteration = newest = 0
    best = BestCheckpoint(tmp_path, "test/avg@k")
    best.consider(scored(0, scores[0]), saver("0"))
    for _ in range(60):
        iteration += 1
        if iteration == len(scores):
            break
        best.consider(scored(iteration, scores[iteration]), saver(str(iteration)))
        settled = False
        if rng.random() < 0.4:
            newest, settled = iteration, rng.random() < 0.7  # else killed between the two
        if settled:
            best.settle()
            assert state_of(tmp_path) == truth(iteration)
        if rng.random() < 0.3 or (newest == iteration and not settled):
            go_back(tmp_path, newest)
            assert state_of(tmp_path) == (truth(newest) if newest else None)
            iteration, best = newest, BestCheckpoint(tmp_path, "test/avg@k")
            if newest == 0:
                best.consider(scored(0, scores[0]), saver("0"))
    best.settle()
    assert state_of(tmp_path) == truth(min(iteration, len(scores) - 1))
    assert [p.name for p in tmp_path.iterdir()] == ["best"] * (truth(11) is not None)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_kill_between_two_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Of the three of a settling: the old one aside, the new one in place, the waiting one away."""
    best = BestCheckpoint(tmp_path, "test/avg@k")
    best.consider(scored(2, 0.2), saver("2"))
    best.settle()
    best.consider(scored(4, 0.4), saver("4"))
    calls, replace, rename = [], os.replace, Path.rename

    def stopping(do: Any) -> Any:
        def called(a: Any, b: Any) -> Any:
            calls.append(a)
            if len(calls) == fails_at:
                raise Stop
            return do(a, b)

        return called

    monkeypatch.setattr(os, "replace", stopping(replace))
    monkeypatch.setattr(Path, "rename", stopping(rename))
    with pytest.raises(Stop):
        best.settle()
    monkeypatch.undo()
    go_back(tmp_path, 4)
    assert state_of(tmp_path) == (4, "4")


def test_a_power_cut_leaves_the_best_that_the_checkpoint_knows_of(tmp_path: Path) -> None:
    """At each fsync, with a disk that keeps no more than POSIX promises (benchmarks/power_cut)."""
    power, chance = load_script("benchmarks/power_cut.py"), random.Random(0)
    truth = {0: None, 1: (1, "1"), 3: (3, "3"), 5: (3, "3"), 6: (6, "6")}

    def train_like(run: Path) -> None:
        run.mkdir()
        best = BestCheckpoint(run, "test/avg@k")
        for i, score in enumerate((0.1, 0.2, 0.15, 0.4, 0.3, 0.4, 0.5)):
            best.consider(scored(i, score), saver(str(i)))
            if i and i in truth:
                with replacing(run / "checkpoint") as part:
                    part.write_text(str(i))
                best.settle()

    cut = 0
    while True:
        cut += 1
        disk = power.Disk(tmp_path / f"{cut}/disk", tmp_path / f"{cut}/store", cut)
        disk.root.mkdir(parents=True)
        try:
            with disk.watched():
                train_like(disk.root / "run")
        except power.Cut:
            pass
        else:
            break
        for seed in range(6):
            after = tmp_path / f"{cut}/after{seed}"
            power.survivors(disk.now, disk.store, disk.root.stat().st_ino, after, chance)
            run = after / "run"
            known = int((run / "checkpoint").read_text()) if (run / "checkpoint").exists() else 0
            if run.exists():
                go_back(run, known)
                assert state_of(run) == truth[known]
    assert cut > 30


def test_a_disk_that_refuses_leaves_the_best_before(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path, "test/avg@k")
    best.consider(scored(1, 0.1), saver("1"))
    best.settle()

    def full(directory: Path) -> None:
        (directory / "model.safetensors").write_text("half")
        raise OSError(28, "No space left on device")

    refused(lambda: best.consider(scored(2, 0.2), full), "No space left", error=RunStopped)
    assert state_of(tmp_path) == (1, "1")
    assert [p.name for p in tmp_path.iterdir()] == ["best"]


def test_another_figure_begins_anew_and_none_leaves_it_alone(tmp_path: Path) -> None:
    first, none, other = (
        BestCheckpoint(tmp_path, name) for name in ("test/avg@k", "", "test/pass@k")
    )
    first.consider(scored(1, 0.5), saver("1"))
    first.settle()
    none.consider(scored(2, 0.9), saver("2"))
    none.settle()
    assert state_of(tmp_path) == (1, "1")
    row = {"iteration": 3, "set": "test", "pass@k": 0.2}
    other.consider([row], saver("3"))
    other.settle()
    assert state_of(tmp_path) == (3, "3")


@pytest.mark.long
@pytest.mark.parametrize("stopped_after", [1, 3])
def test_a_resumed_run_keeps_the_same_best(tmp_path: Path, stopped_after: int) -> None:
    def config(name: str) -> TrainConfig:
        save = {"best": "test/avg@k", "checkpoint_every": 2, "rollouts_every": 0}
        return small(tmp_path / name, eval=[{"prompts": 3, "samples": 4, "every": 1}], save=save,
                     optim={"lr": 3e-3})  # fmt: skip

    whole = train(config("whole"))
    with pytest.raises(Stop):
        train(config("run"), progress=StopAfter(stopped_after))
    run = train(config("run"), resume=True)
    assert rows(run) == rows(whole)
    for name in ("entrostat.json", "model.safetensors"):
        assert (run / "best" / name).read_bytes() == (whole / "best" / name).read_bytes()
    assert not (run / "best.next").exists()
    AutoModelForCausalLM.from_pretrained(run / "best")


def test_best_is_the_weights_of_its_iteration(tmp_path: Path) -> None:
    """A run that ends where another was best has that policy as its final one."""
    every, save = {"prompts": 3, "samples": 4, "every": 1}, {"rollouts_every": 0}
    best = save | {"best": "test/prompt_entropy"}
    long = train(small(tmp_path / "long", eval=every, save=best))
    found = best_of(long / "best")
    assert found is not None
    assert 0 < found["iteration"] < 4
    short = train(small(tmp_path / "short", iterations=found["iteration"], eval={"prompts": 0}))
    final = (short / "final/model.safetensors").read_bytes()
    assert (long / "best/model.safetensors").read_bytes() == final


def test_best_by_the_mean_of_several_sets(tmp_path: Path) -> None:
    best, row = BestCheckpoint(tmp_path, "a/avg@k, b/pass@k"), {"avg@k": 0.0, "pass@k": 0.0}

    def scores(iteration: int, **sets: dict[str, float]) -> list[dict[str, Any]]:
        return [row | {"set": name, "iteration": iteration} | of for name, of in sets.items()]

    # means .5, .4 (a alone is higher), then a alone, which does not count; at last .55
    for rows, kept in (
        (scores(1, a={"avg@k": 0.2}, b={"pass@k": 0.8}), 1),
        (scores(2, a={"avg@k": 0.7}, b={"pass@k": 0.1}), 1),
        (scores(3, a={"avg@k": 0.9}), 1),
        (scores(4, a={"avg@k": 0.3}, b={"pass@k": 0.8}), 4),
    ):
        best.consider(rows, saver(str(rows[0]["iteration"])))
        best.settle()
        found = best_of(tmp_path / "best")
        assert found is not None
        assert found["iteration"] == kept
    assert found["value"] == pytest.approx(0.55)


def test_a_run_that_starts_anew_forgets_the_best_of_an_attempt(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / ".lock").touch()
    BestCheckpoint(path, "test/avg@k").consider(scored(0, 9.0), saver("0"))  # no run reaches 9
    run = train(small(path, save={"best": "test/avg@k"}))
    assert best_of(run / "best")["value"] <= 1  # type: ignore[index]


def test_the_final_model_is_not_written_through_a_planted_link(tmp_path: Path) -> None:
    run, victim = tmp_path / "run", tmp_path / "victim"
    run.mkdir()
    victim.mkdir()
    (victim / "precious").write_text("mine")
    for name in (".final.part", ".old.part"):
        (run / name).symlink_to(victim)
    directory = RunDirectory(run)
    directory.finish(saver("one"), 1)
    directory.finish(saver("two"), 2)
    assert (run / "final/model.safetensors").read_text() == "two"
    assert directory.finished() == 2
    directory.rewind(2, {})
    assert {p.name for p in run.iterdir()} == {"final"}
    assert (victim / "precious").read_text() == "mine"


def test_trl_evaluates_the_same_sets_and_keeps_the_best(tmp_path: Path, run: Path) -> None:
    pytest.importorskip("trl", reason="trl is an extra")
    config = small(
        tmp_path / "run", host="trl", eval=[*SETS], iterations=2,
        optim={"micro_batch": 4}, save={"best": "hot/avg@k"},
    )  # fmt: skip
    done = trains("trl")(config)
    before = [row for row in rows(run) if row["iteration"] == 0 and row["set"] != "held"]
    assert rows(done)[:3] == [pytest.approx(row, abs=1e-6) for row in before]  # micro-batches
    assert [(r["iteration"], r["set"]) for r in rows(done)[3:]] == [
        (1, "test"), (2, "test"), (2, "ood"), (2, "hot"),
    ]  # fmt: skip
    found = best_of(done / "best")
    hot = rows(done, "hot")
    assert found is not None
    assert found["value"] == max(row["avg@k"] for row in hot)
    if found["iteration"] == 2:
        final = (done / "final/model.safetensors").read_bytes()
        assert (done / "best/model.safetensors").read_bytes() == final
