"""Records: a study on another machine takes what is done from them, and trains the rest."""

from __future__ import annotations

import json
import lzma
import multiprocessing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from builders import refused
from entrostat.config import load
from entrostat.logs.run import read_run
from entrostat.study.execute import State, execute, is_done
from entrostat.study.file import read_study, with_seeds
from entrostat.study.plan import Plan, Training, make_places, plan_of
from entrostat.study.record import recorded, restore, save_record
from entrostat.study.runner import _keep, run_study

FILE = """\
seeds = [0]
[base]
iterations = 2
[[runs]]
name = "a"
[[runs]]
name = "b"
after = "a"
[[runs]]
name = "c"
method = "gspo"
"""


def lines_of(record: Path) -> dict[str, dict]:
    """What the one file of a record holds, by address."""
    rows = map(json.loads, lzma.decompress((record / "s.jsonl.xz").read_bytes()).splitlines())
    return {row["address"]: row for row in rows}


def write_lines(record: Path, lines: dict[str, dict]) -> None:
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in lines.values())
    (record / "s.jsonl.xz").write_bytes(lzma.compress(text.encode()))


def without(record: Path, address: str) -> None:
    write_lines(record, {a: row for a, row in lines_of(record).items() if a != address})


def plan(folder: Path) -> Plan:
    folder.mkdir(exist_ok=True)
    (folder / "s.toml").write_text(FILE)
    made = plan_of({"s": read_study(folder / "s.toml")}, folder / "out")
    make_places(made)
    return made


def finish(training: Training) -> None:
    """What a training leaves, of its kind."""
    path = training.path
    text = training.config.to_toml().replace('model = "tiny"', f'model = "{path}/elsewhere"')
    (path / "config.toml").write_text(text)
    (path / "environment.json").write_text(
        '{"python": "3", "processor": "A", "gpus": [], "arguments": ["/some/place/x"]}'
    )
    (path / "objective.json").write_text('{"methods": []}')
    rows = [
        {"iteration": 1, "entropy/exact": 0.123456789, "time/iteration": 2.3456, "time/score": 1.0},
        {"iteration": 2, "reward/mean": -1e-9, "cov/by": [1 / 3, None], "word": "x"},
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "evaluation.jsonl").write_text('{"iteration": 2, "split": "test", "avg@k": 0.5}\n')
    (path / "analysis.jsonl").write_text('{"iteration": 1, "change/mean": 0.5, "cloud": [1]}\n')
    (path / "answers.jsonl").write_text('{"iteration": 2, "secret": 1}\n')
    (path / "final").mkdir()
    (path / "final/entrostat.json").write_text('{"iterations": 2}')


class Own:
    """Workers that finish what they start."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.told: list[list[str]] = []
        self.now: list[Training] = []

    def room(self, training: Training) -> bool:
        return True

    def start(self, training: Training, words: list[str]) -> None:
        assert not (training.path / "metrics.jsonl").exists()  # nothing old is mixed in
        self.started.append(training.path.name)
        self.told.append(words)
        self.now.append(training)

    def ended(self) -> list[tuple[str, int]]:
        ended, self.now = self.now, []
        for training in ended:
            finish(training)
        return [(training.address, 0) for training in ended]

    def close(self) -> None:
        pass


def train(made: Plan, record: Path) -> tuple[list[str], State]:
    restore(made, record)
    workers = Own()
    state = execute(made, workers, lambda state: None, keep=lambda t: save_record(t, record))
    assert not state.failed
    return workers.started, state


def test_numbers_come_back_and_nothing_of_the_machine(tmp_path: Path) -> None:
    record = tmp_path / "record"
    first = plan(tmp_path / "one")
    assert train(first, record)[0] == ["a-0", "c-0", "b-0"]
    (file,) = record.iterdir()
    assert file.name == "s.jsonl.xz"
    assert lines_of(record).keys() == first.trainings.keys()
    packed = lzma.decompress(file.read_bytes())
    assert b"place" not in packed
    assert str(tmp_path).encode() not in packed
    assert b"secret" not in packed
    before = file.read_bytes()
    second = plan(tmp_path / "two")
    assert train(second, record)[0] == []
    assert file.read_bytes() == before
    run = read_run(tmp_path / "two/out/a-0")
    assert run.metrics == [
        {"iteration": 1, "entropy/exact": 0.12346, "time/iteration": 2.35},
        {"iteration": 2, "reward/mean": -1e-9, "cov/by": [0.33333, None], "word": "x"},
    ]
    assert run.evaluation == [{"iteration": 2, "split": "test", "avg@k": 0.5}]
    assert run.analysis == [{"iteration": 1, "change/mean": 0.5}]
    assert run.answers == []
    assert json.loads(run.environment_text) == {"python": "3", "processor": "A", "gpus": []}
    assert run.planned == 2
    a, b, _ = second.trainings.values()
    assert load(b.path / "config.toml")["model"] == f"{a.address}/final"


def test_weights_that_are_wanted_are_trained(tmp_path: Path) -> None:
    """The record has a, but not b, which begins with a's policy."""
    record = tmp_path / "record"
    first = plan(tmp_path / "one")
    train(first, record)
    a, b, c = first.trainings
    without(record, b)
    second = plan(tmp_path / "two")
    assert restore(second, record) == {c}
    assert train(second, record)[0] == ["a-0", "b-0"]
    assert b in lines_of(record)
    # also where a's numbers had been taken before b was wanted
    third = plan(tmp_path / "three")
    assert restore(third, record) == {a, b, c}
    without(record, b)
    (third.trainings[b].path / "recorded.json").unlink()
    (third.trainings[b].path / "metrics.jsonl").unlink()
    assert restore(third, record) == {c}
    assert not (third.trainings[a].path / "metrics.jsonl").exists()
    assert train(third, record)[0] == ["a-0", "b-0"]


def test_what_was_trained_here_is_not_replaced(tmp_path: Path) -> None:
    made = plan(tmp_path / "one")
    for training in made.trainings.values():
        finish(training)
        save_record(training, tmp_path / "record")
    assert restore(made, tmp_path / "record") == set()
    assert all(is_done(training) for training in made.trainings.values())
    assert read_run(made.named[0].path).metrics[0]["entropy/exact"] == 0.123456789


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_bytes(
            file.read_bytes()[:200] + bytes([file.read_bytes()[200] ^ 1]) + file.read_bytes()[201:]
        ),
        lambda file: file.write_bytes(b"not packed"),
        lambda file: file.write_bytes(lzma.compress(b"[]")),
        lambda file: file.write_bytes(
            lzma.compress(lzma.decompress(file.read_bytes()).replace(b'"format":2', b'"format":3'))
        ),
        lambda file: file.write_bytes(
            lzma.compress(lzma.decompress(file.read_bytes()).replace(b'"iteration":[1,2]',
                                                                     b'"iteration":[1]'))
        ),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, damage) -> None:
    first = plan(tmp_path / "one")
    train(first, tmp_path / "record")
    file = tmp_path / "record/s.jsonl.xz"
    damage(file)
    refused(lambda: restore(plan(tmp_path / "two"), tmp_path / "record"), file.name)


def test_lean_takes_weights_away_once_nothing_needs_them(tmp_path: Path) -> None:
    made, record = plan(tmp_path), tmp_path / "record"
    record.mkdir()
    a, b, c = made.trainings.values()
    workers, weights = Own(), {}

    def keep(training: Training) -> None:
        weights[training.path.name] = [
            (each.path / "final").exists() for each in made.trainings.values()
        ]
        _keep(made, record, True, training)

    state = execute(made, workers, lambda state: None, keep=keep, pages=False)
    assert state.done == set(made.trainings)
    assert all(words[-1] == "--no-report" for words in workers.told)
    assert weights["b-0"][0]  # b begins with a's policy, which was there until b was done
    assert not any((each.path / "final").exists() for each in (a, b, c))
    assert all(is_done(each) for each in (a, b, c))
    assert (a.path / "answers.jsonl").exists()
    # the numbers are there for a report, the same as before, and for another start
    assert read_run(a.path).series("entropy/exact")[1] == [0.123456789]
    again = Own()
    execute(made, again, lambda state: None, keep=keep)
    assert again.started == []


def test_lean_leaves_a_run_that_was_made_by_hand(tmp_path: Path) -> None:
    (tmp_path / "out/c-0").mkdir(parents=True)
    made, record = plan(tmp_path), tmp_path / "record"
    record.mkdir()
    c = list(made.trainings.values())[-1]
    assert c.path == tmp_path / "out/c-0"
    finish(c)
    execute(made, Own(), lambda state: None, keep=partial(_keep, made, record, True))
    assert c.address in lines_of(record)
    assert (c.path / "final").exists()


def test_lean_needs_a_record(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(FILE)
    refused(lambda: run_study(tmp_path / "s.toml", str(tmp_path / "out"), lean=True), "--record")
    assert not (tmp_path / "out").exists()


def test_some_of_the_seeds(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(FILE.replace("[0]", "[0, 1, 2]"))
    study = with_seeds(read_study(tmp_path / "s.toml"), [2, 0, 7], "s")
    assert list(study.runs) == ["a-0", "b-0", "c-0", "a-2", "b-2", "c-2"]
    assert study.origins["b-2"].after == "a-2"
    assert study.origins.keys() == study.runs.keys()
    # a run's own seed may be another than that of the run it begins after
    path = tmp_path / "own.toml"
    path.write_text(
        'title = "own"\n[[runs]]\nname = "a"\nseed = 0\n[[runs]]\nname = "b"\nafter = "a"\n'
        'seed = 1\n[[runs]]\nname = "c"\nseed = 0\n'
    )
    assert list(with_seeds(read_study(path), [1], "own").runs) == ["a", "b"]
    refused(lambda: with_seeds(read_study(tmp_path / "s.toml"), [5], "s"), "'s'", "none of 5")


def test_a_report_of_a_record_needs_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers of somebody else's training are read where its policy was never fetched."""
    monkeypatch.setenv("ENTROSTAT_CACHE", str(tmp_path / "empty"))
    study, record, out = tmp_path / "s.toml", tmp_path / "record", str(tmp_path / "out")
    study.write_text('[base]\nmodel = "smollm2"\n[[runs]]\nname = "a"\n')
    record.mkdir()
    made = plan_of({"s": read_study(study)}, tmp_path / "first")
    make_places(made)
    (training,) = made.trainings.values()
    finish(training)
    save_record(training, record)

    assert run_study(study, out, record=record, train=False) == 0
    assert "record: 1 of 1 trainings" in capsys.readouterr().err
    refused(lambda: run_study(study, out, record=record), "'smollm2'")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("texts"), lambda data: data.pop("iterations"),
        lambda data: data["texts"].update({"config.toml": None}),
        lambda data: data["logs"].update({"metrics.jsonl": {}}),
        lambda data: data["logs"].update({"metrics.jsonl": {"entropy/exact": [1.0]}}),
    ],
)  # fmt: skip
def test_a_record_without_metrics_is_none(tmp_path: Path, change) -> None:
    """It would pass for a run that is done, of which nothing can be read ever after."""
    first = plan(tmp_path / "one")
    train(first, tmp_path / "record")
    lines = lines_of(tmp_path / "record")
    change(next(iter(lines.values())))
    write_lines(tmp_path / "record", lines)
    refused(lambda: restore(plan(tmp_path / "two"), tmp_path / "record"), "record", "s.jsonl.xz")


def test_a_run_made_by_hand_is_not_overwritten(tmp_path: Path) -> None:
    first = plan(tmp_path / "one")
    train(first, tmp_path / "record")
    own = tmp_path / "two/out/c-0"
    own.mkdir(parents=True)
    training = next(t for t in first.trainings.values() if t.path.name == "c-0")
    (own / "config.toml").write_text(training.config.to_toml())
    (own / "metrics.jsonl").write_text('{"iteration": 1}\n')  # it was stopped
    second = plan(tmp_path / "two")
    assert training.address not in restore(second, tmp_path / "record")
    assert (own / "metrics.jsonl").read_text() == '{"iteration": 1}\n'
    assert not (own / "recorded.json").exists()


def test_no_path_of_a_setting_is_on_record(tmp_path: Path) -> None:
    made = plan(tmp_path)
    training = next(iter(made.trainings.values()))
    finish(training)
    task = "[task]\nname = 'math:/elsewhere/x.jsonl'\npath = { train = '/elsewhere/y.jsonl' }\n"
    text = (training.path / "config.toml").read_text()
    start = text.index("[task]")
    end = text.index("[", start + 1)
    stop = "[sampling]\nstop = ['/', 'x']\n"
    begin = text.index("[sampling]")
    after = text.index("[", begin + 1)
    rest = text[:start] + text[end:begin] + text[after:]
    (training.path / "config.toml").write_text(rest + task + stop)
    save_record(training, tmp_path / "record")
    (data,) = lines_of(tmp_path / "record").values()
    assert "/elsewhere" not in data["texts"]["config.toml"]
    (tmp_path / "kept.toml").write_text(data["texts"]["config.toml"])
    kept = load(tmp_path / "kept.toml")
    assert kept["task"] == {"name": "math:x.jsonl", "path": {"train": "y.jsonl"}}
    assert kept["sampling"]["stop"] == ["/", "x"]


def test_part_of_the_seeds_decides_no_claim(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that is done is told of, whichever seeds a call is to train."""
    study, record, out = tmp_path / "s.toml", tmp_path / "record", str(tmp_path / "out")
    study.write_text('seeds = [0, 1, 2, 3, 4]\n[base]\niterations = 2\n[[runs]]\nname = "a"\n')
    (tmp_path / "c.toml").write_text(
        '[[claims]]\nid = "x"\npaper = "OURS"\nwhere = "-"\nsays = "-"\nexperiment = "s"\n'
        'figure = { metric = "entropy/exact", at = "first" }\nstatistic = "level"\na = "a"\n'
        'than = 0.0\ndirection = "above"\nleast = 0.0\n'
    )
    made = plan_of({"s": read_study(study)}, tmp_path / "first")
    make_places(made)
    for named in made.named:
        training = made.trainings[named.address]
        finish(training)
        height = 1 + named.seed / 100 if named.seed < 3 else -9.0
        (training.path / "metrics.jsonl").write_text(
            json.dumps({"iteration": 1, "entropy/exact": height}) + "\n"
        )
        save_record(training, record)
    for seeds in (None, [0, 1, 2]):
        assert run_study(study, out, record=record, claims=tmp_path / "c.toml", seeds=seeds) == 0
        results = json.loads((tmp_path / "out/results.json").read_text())
        assert results["claims"]["decided"][0]["verdict"] == "cannot be told"
        assert results["experiments"]["s"]["groups"]["a"]["seeds"] == [0, 1, 2, 3, 4]
    # a run whose log was damaged since is a failure, and takes nothing else away
    name = next(each for each in made.named if each.seed == 3)
    (tmp_path / "out/.store" / name.address / "metrics.jsonl").write_text("no json\n")
    assert run_study(study, out, record=record, claims=tmp_path / "c.toml", train=False) == 1
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["experiments"]["s"]["groups"]["a"]["seeds"] == [0, 1, 2, 4]
    assert "cannot be read" in results["experiments"]["s"]["failed"]["a-3"]
    assert "did not end well with seed 3" in results["claims"]["decided"][0]["why"]


def test_a_record_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[base]\niterations = 1\n[[runs]]\nname = "a"\n')
    (tmp_path / "file").write_text("")
    refused(
        lambda: run_study(tmp_path / "s.toml", str(tmp_path / "out"), record=tmp_path / "file"),
        "file",
        error=(ValueError, OSError),
    )
    assert not list((tmp_path / "out/.store").glob("*.log"))


def test_files_of_one_experiment_are_joined_by_cat(tmp_path: Path) -> None:
    made = plan(tmp_path / "made")
    a, _, c = made.trainings.values()
    for place, training in (("one", a), ("two", c), ("two", a)):
        if not (training.path / "metrics.jsonl").exists():
            finish(training)
        save_record(training, tmp_path / place)
    both = b"".join((tmp_path / place / "s.jsonl.xz").read_bytes() for place in ("one", "two"))
    (tmp_path / "both").mkdir()
    (tmp_path / "both/s.jsonl.xz").write_bytes(both)
    assert recorded(plan(tmp_path / "again"), tmp_path / "both") == {a.address, c.address}


def test_what_another_experiment_has_on_record_is_found_there(tmp_path: Path) -> None:
    made = plan(tmp_path / "made")
    a = next(iter(made.trainings.values()))
    finish(a)
    save_record(a, tmp_path / "record")
    save_record(replace(a, experiment="other"), tmp_path / "record")
    assert [file.name for file in (tmp_path / "record").iterdir()] == ["s.jsonl.xz"]
    (tmp_path / "record/s.jsonl.xz").rename(tmp_path / "record/other.jsonl.xz")
    assert recorded(plan(tmp_path / "again"), tmp_path / "record") == {a.address}


def test_a_write_that_is_cut_short_leaves_the_record_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plan(tmp_path / "made")
    a, _, c = made.trainings.values()
    for training in (a, c):
        finish(training)
    save_record(a, tmp_path / "record")
    before = (tmp_path / "record/s.jsonl.xz").read_bytes()

    def full(path: Path, data: bytes) -> int:
        with open(path, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        refused(lambda: save_record(c, tmp_path / "record"), "No space left", error=OSError)
    assert [file.name for file in (tmp_path / "record").iterdir()] == ["s.jsonl.xz"]
    assert (tmp_path / "record/s.jsonl.xz").read_bytes() == before


def test_several_processes_add_to_one_file(tmp_path: Path) -> None:
    made = plan(tmp_path / "made")
    (a, *_) = made.trainings.values()
    finish(a)
    several = [replace(a, address=f"{i:016x}") for i in range(12)]
    with multiprocessing.get_context("fork").Pool(4) as pool:
        pool.starmap(save_record, [(each, tmp_path / "record") for each in several], 1)
    assert lines_of(tmp_path / "record").keys() == {each.address for each in several}
