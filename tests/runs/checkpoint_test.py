"""A run survives: damaged files, edited settings, power cuts, and what else may be wrong at first.

The truth is a run that was left alone; every resume ends bit for bit as that, or is refused in a
line that says why, with every file as it was.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from builders import refused
from entrostat.cli import main
from entrostat.config import TrainConfig, from_dict
from entrostat.data.prompts import encode
from entrostat.errors import RunStopped
from entrostat.logs.lines import JsonLines
from entrostat.models.loading import load_policy
from entrostat.models.pretrain import tokenizer
from entrostat.runs import checkpoint as checkpoints
from entrostat.runs import run_writer as clock
from entrostat.runs.progress import Progress
from entrostat.runs.resolve import check_task
from entrostat.runs.resume import differences
from entrostat.runs.run_directory import RunDirectory, check_output
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train
from lab_runs import assert_same_run, metrics
from lab_runs import small as small_run
from scripts import load_script
from stopping import Stop, StopAfter


def small(output: Path, **changes: Any) -> TrainConfig:
    return small_run(output, **{"sampling": {"prompts": 4, "rollouts": 4}, **changes})


class Told(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.facts: list[str] = []

    def fact(self, text: str) -> None:
        self.facts.append(text)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small(tmp_path_factory.mktemp("whole") / "run"))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After iteration 3 of 4, with the checkpoints 2 and 3."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stop):
        train(small(path), progress=StopAfter(3))
    return path


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """One to damage."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def content(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.is_file()}


def resumed(run: Path) -> list[str]:
    """What was said."""
    told = Told()
    train(small(run), progress=told, resume=True)
    return told.facts


# -------------------------------------------------------------------------------- damaged files


def flip(path: Path, place: float) -> None:
    """One bit, so far through the file."""
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", [0, 0.001, 0.3, 0.7, 1])
@pytest.mark.parametrize("name", ["000003.safetensors", "000003.json"])
def test_a_flipped_bit_is_found_wherever_it_is(run: Path, name: str, place: float) -> None:
    flip(run / "checkpoints" / name, place)
    saved = checkpoints.newest(run / "checkpoints")
    assert saved is not None
    assert saved.iteration == 2
    assert saved.passed_over[0].startswith(f"checkpoint 3: {name} is damaged")


def test_the_checkpoint_before_a_damaged_one_is_gone_on_from(whole: Path, run: Path) -> None:
    flip(run / "checkpoints/000003.safetensors", 0.5)
    facts = resumed(run)
    assert any("checkpoint 3: 000003.safetensors is damaged" in f and
               f.endswith("going on from checkpoint 2") for f in facts)  # fmt: skip
    assert any(f.startswith("going on after iteration 2: of what came later 1 line") for f in facts)
    assert_same_run(whole, run)


def test_a_manifest_of_another_checkpoint_does_not_pass(run: Path) -> None:
    folder = run / "checkpoints"
    for kind in ("json", "safetensors"):
        shutil.copy(folder / f"000002.{kind}", folder / f"000003.{kind}")
    saved = checkpoints.newest(folder)
    assert saved is not None
    assert saved.iteration == 2


def edit(name: str, change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def edited(run: Path) -> None:
        lines = (run / name).read_bytes().splitlines(keepends=True)
        (run / name).write_bytes(b"".join(change(lines)))

    return edited


def test_a_damaged_last_line_is_made_again(whole: Path, run: Path) -> None:
    edit("metrics.jsonl", lambda lines: [*lines[:2], lines[2].replace(b":", b";", 1)])(run)
    assert any("checkpoint 3: line 3 of metrics.jsonl is damaged" in f for f in resumed(run))
    assert_same_run(whole, run)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (edit("metrics.jsonl", lambda x: [b"[4]\n", *x[1:]]), "line 1 of metrics.jsonl is damaged"),
        (edit("metrics.jsonl", lambda x: x[:1]), "metrics.jsonl lacks its last"),
        (edit("metrics.jsonl", lambda x: [x[0].replace(b"0", b"1"), *x[1:]]),
         "metrics.jsonl is not what was written"),
        (edit("evaluation.jsonl", lambda x: [b"\xff" + x[0], *x[1:]]),
         "line 1 of evaluation.jsonl is damaged"),
        (lambda run: (run / "answers.jsonl").unlink(), "answers.jsonl is gone"),
    ],
)  # fmt: skip
def test_lines_that_no_checkpoint_can_do_without(
    run: Path, damage: Callable[[Path], None], said: str
) -> None:
    """Refused, and what is left of the log stays."""
    damage(run)
    before = content(run)
    with pytest.raises(RunStopped, match=f"nothing was changed .*checkpoint 2: {said}") as error:
        train(small(run), resume=True)
    assert "\n" not in str(error.value)
    assert content(run) == before


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('{"iteration": 1, "time/checkpoint": 0}\n{"iter', None),
        ('[1]\n"two"\n3\n', None),
        ('{"iteration": 1}\n[]\n{"iteration": 2, "time/checkpoint": 1}\n', "2 iterations but no"),
        ('{"iteration": 1, "time/checkpoint": "x"}\n', "1 iterations but no"),
    ],
)
def test_a_log_without_a_checkpoint(tmp_path: Path, text: str, refused: str | None) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    if refused is None:
        RunDirectory(tmp_path).check_unsaved()
    else:
        with pytest.raises(RunStopped, match=refused):
            RunDirectory(tmp_path).check_unsaved()


@pytest.mark.parametrize("done", [10**400, 0, -1, 2.0, "3", None, True, [4]])
def test_a_final_model_of_no_such_iteration(tmp_path: Path, done: object) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final/entrostat.json").write_text(json.dumps({"iterations": done}))
    assert RunDirectory(tmp_path).finished() is None


def test_a_log_of_another_trainer_is_not_cut_at_a_damaged_line(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "metrics.jsonl")
    log.path.write_text('{"iteration": 1}\n{"iteration" 2}\n{"iteration": 3}\n{"iter')
    before = log.path.read_bytes()
    refused(lambda: log.keep_until(3), "line 2 of 3 is damaged")
    assert log.path.read_bytes() == before
    log.path.write_text('{"iteration": 1}\n{"iteration": 2}\n{"iter')
    log.keep_until(1)
    assert log.path.read_text() == '{"iteration": 1}\n'


# ----------------------------------------------------------------------------- edited settings


def test_what_may_differ_at_a_resume() -> None:
    one = from_dict({"method": [{"name": "repo_r", "target": 0.5}]})
    other = from_dict({
        "method": [{"name": "repo_r", "target": 0.5}], "iterations": 9, "threads": 2,
        "output": "elsewhere", "save": {"checkpoints": 7}, "scoring": {"workers": 3},
    })  # fmt: skip
    assert list(differences(one, other)) == []
    other.optim.lr, other.task = 0.1, {"name": "words"}
    assert list(differences(one, other)) == [
        ("task.name", "target_sum", "words"),
        ("optim.lr", None, 0.1),
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", None, r"method is \['grpo'\], was \['grpo', \{.*\}\], .*, and \d more"),
        ("lr = 0.0003", "lr = 0.1", "optim.lr is 0.1, was 0.0003"),
        ("seed = 0", "seed = 1", "seed is 1, was 0"),
    ],
)
def test_a_configuration_that_made_no_checkpoint_of_the_run(
    run: Path, capsys: pytest.CaptureFixture, old: str, new: str | None, said: str
) -> None:
    path = run / "config.toml"
    text = path.read_text()
    assert old in text
    path.write_text("" if new is None else text.replace(old, new))
    before = content(run)
    assert main(["train", "--resume", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(f"made with another configuration: .*{said}", error)
    assert content(run) == before


def test_a_config_in_the_place_that_a_run_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "exp").mkdir()
    mine = tmp_path / "exp/config.toml"
    mine.write_text("# mine\nseed = 3\n")
    words = ["train", "--config", str(mine), "--output", str(tmp_path / "exp")]
    assert main(words) == 2
    assert "holds the --config file itself" in capsys.readouterr().err
    with pytest.raises(ValueError, match="is not empty"):  # nor by another way
        check_output(tmp_path / "exp", 4, resume=False)
    assert mine.read_text() == "# mine\nseed = 3\n"
    (tmp_path / "exp/.lock").touch()  # a run that stopped before its first iteration
    check_output(tmp_path / "exp", 4, resume=False)
    assert main(words) == 2
    assert list((tmp_path / "exp").iterdir()) != []
    assert mine.read_text() == "# mine\nseed = 3\n"


# -------------------------------------------------------------------------------------- power cuts


def harness() -> ModuleType:
    return load_script("benchmarks/power_cut.py")


def test_a_power_cut_is_one(tmp_path: Path) -> None:
    """The imitation: what was not fsynced may be lost, what was is not."""
    power = harness()
    disk = power.Disk(tmp_path / "disk", tmp_path / "store")
    disk.root.mkdir()
    with disk.watched():

        def fsync(path: Path) -> None:
            place = os.open(path, os.O_RDONLY)
            os.fsync(place)
            os.close(place)

        (disk.root / "kept").write_bytes(b"12")
        for path in (disk.root / "kept", disk.root):
            fsync(path)
        with open(disk.root / "kept", "ab") as file:
            file.write(b"34")
        (disk.root / "new").write_bytes(b"5")
        now = power.scan(disk.root)
    found = set()
    for seed in range(40):
        target = tmp_path / f"{seed}"
        power.survivors(now, disk.store, disk.root.stat().st_ino, target, random.Random(seed))
        found.add(tuple((p.name, p.read_bytes()) for p in sorted(target.iterdir())))
    kept = {dict(files)["kept"] for files in found}
    assert kept == {b"12", b"123", b"1234", b"12\0\0"}
    assert {dict(files).get("new") for files in found} == {None, b"", b"5", b"\0"}


def brief(output: Path) -> TrainConfig:
    return small(output, iterations=2, method=["grpo"], eval={"prompts": 1, "samples": 2})


def test_power_cuts(tmp_path: Path) -> None:
    """In place of an fsync; what was there then survives in part. The large one: benchmarks/."""
    power, chance = harness(), random.Random(1)

    def disk(name: str, cut: int | None = None) -> Any:
        (tmp_path / name / "disk").mkdir(parents=True)
        return power.Disk(tmp_path / name / "disk", tmp_path / name / "store", cut)

    whole = disk("whole")
    with whole.watched():
        train(brief(whole.root / "run"))
    assert whole.count > 30
    for cut in sorted(chance.sample(range(1, whole.count + 1), 5)):
        one = disk(f"{cut}", cut)
        with pytest.raises(power.Cut), one.watched():
            train(brief(one.root / "run"))
        after = tmp_path / f"{cut}" / "after"
        power.survivors(one.now, one.store, one.root.stat().st_ino, after, chance)
        run = after / "run"
        train(brief(run), resume=(run / "config.toml").exists())
        assert_same_run(whole.root / "run", run)


# ---------------------------------------------------------------------------------- at the start


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"threads": 100_000}, "threads must be at most 1024, got 100000"),
        ({"sampling": {"prompts": 10**20}}, "sampling.prompts must be at most 100000"),
        ({"sampling": {"prompts": 10**5, "rollouts": 11}}, "100000 prompts of 11 rollouts"),
        ({"optim": {"epochs": 10**20}}, "optim.epochs must be at most 2147483647"),
        ({"iterations": 10**400}, "iterations must be at most 1000000000"),
        ({"seed": 2**32}, "seed must be at most 4294967295"),
    ],
)
def test_numbers_beyond_all_reason(settings: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_dict(settings)


@pytest.mark.parametrize("size", [2.5, "10", True, (3,)])
def test_sizes_that_are_none(size: object) -> None:
    task = TargetSum()
    task.size = lambda split: size  # type: ignore[method-assign, assignment]
    refused(lambda: check_task(task), "size('train')")


def test_splits_that_are_none() -> None:
    task = TargetSum()
    for splits in ((), "train", None):
        task.splits = splits  # type: ignore[assignment]
        with pytest.raises(ValueError, match="splits must be names in a tuple"):
            check_task(task)


def model(path: Path, vocabulary: int, pad: str | None = "keep") -> str:
    """A small one, with the tokenizer of 15 tokens."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, eos_token_id=1, bos_token_id=1,
        pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    words = tokenizer()
    if pad is None:
        words.pad_token = None
    elif pad != "keep":
        words.add_special_tokens({"pad_token": pad})
    words.save_pretrained(path)
    return str(path)


def test_a_vocabulary_that_is_smaller_than_the_tokenizers(tmp_path: Path) -> None:
    config = small(tmp_path / "run", model=model(tmp_path / "model", 8))
    refused(lambda: train(config), "token 1", "of the prompt", "vocabulary")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("pad", [None, "<new>"])
def test_no_pad_token_or_one_that_the_model_does_not_know(tmp_path: Path, pad: str | None) -> None:
    config = small(tmp_path / "run", iterations=1, model=model(tmp_path / "model", 15, pad))
    assert load_policy(config).pad == 1  # eos
    assert len(metrics(train(config))) == 1


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ messages.nothing.at_all }}", "no attribute 'nothing'"),
        ("{{ raise_exception('') }}", "TemplateError"),
        ("{% for %}", "chat template: "),
    ],
)
def test_a_chat_template_that_fails(template: str, said: str) -> None:
    config = TrainConfig()
    policy = load_policy(config)
    policy.tokenizer.chat_template, config.prompt.chat = template, True
    with pytest.raises(ValueError, match=f"{said}.*see prompt.chat") as error:
        encode(policy, config, [Example("1+1")], new=4)
    assert "\n" not in str(error.value)


def test_a_prompt_that_is_no_text(tmp_path: Path) -> None:
    task = TargetSum()
    task.example = lambda index, split: Example("a\ud800")  # type: ignore[method-assign]
    refused(
        lambda: train(small(tmp_path / "run"), task=task), "half a surrogate pair", error=RunStopped
    )
    assert not (tmp_path / "run").exists()


def test_a_clock_that_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: 7.0))
    run = train(small(tmp_path / "run", iterations=1, eval={"prompts": 0}))
    (line,) = JsonLines(run / "metrics.jsonl").read()
    assert line["time/iteration"] == line["time/tokens_per_second"] == 0


def test_laps_add_up_to_the_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.0, 13.0, 17.0, 25.0])
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    watch = clock.Timer()
    watch.lap("sample")
    watch.lap("measure")
    watch.skip()
    watch.lap("update", without=3.0)
    assert watch.figures(16) == {
        "time/sample": 1, "time/measure": 2, "time/update": 5, "time/iteration": 8,
        "time/tokens_per_second": 2,
    }  # fmt: skip
