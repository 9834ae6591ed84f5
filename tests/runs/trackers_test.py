"""`--log`: what trackers are told, that they never cost the run, that a resumed run is the same.

TensorBoard's and W&B's files are written by the packages, here and offline, and read by
TensorBoard's own reader and by ours. `trackers/fakes.py` stands for a tracker that misbehaves.
MLflow and trackio are not among what `make test` installs: their tests run where they are.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from builders import json_lines, refused
from entrostat.cli import main
from entrostat.cli.flags import named
from entrostat.config import TrainConfig, from_dict
from entrostat.config.instruments import Tracker
from entrostat.logs.importers import read
from entrostat.runs import trackers
from entrostat.runs.run_directory import check_output
from entrostat.runs.trackers import Trackers
from entrostat.runs.trackers import services as outside
from entrostat.runs.trackers.services import SERVICES
from entrostat.trainers.lab import train
from paths import ROOT, TESTS
from stopping import Stop, StopAfter

FAKES = TESTS / "trackers" / "fakes.py"


def recipe(output: Path, to: Any, **more: Any) -> TrainConfig:
    small = {
        "method": "grpo", "iterations": 3, "output": str(output), "log": to,
        "sampling": {"prompts": 4, "rollouts": 2}, "eval": {"prompts": 2, "samples": 2},
        "optim": {"epochs": 1, "minibatches": 1},
    }  # fmt: skip
    return from_dict(small | more)


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return json_lines(run / name)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """trackio is the fake; returns what it is told."""
    folder, log = tmp_path / "fakes", tmp_path / "told.jsonl"
    folder.mkdir()
    shutil.copy(FAKES, folder / "trackio.py")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("ENTROSTAT_FAKE_LOG", str(log))
    monkeypatch.setenv("ENTROSTAT_FAKE", "")
    sys.modules.pop("trackio", None)
    yield log
    sys.modules.pop("trackio", None)


def told(log: Path) -> list[list[Any]]:
    return json_lines(log)


def logged(log: Path) -> list[int]:
    return [what[1] for what in told(log) if what[0] == "log"]


def follow(
    config: TrainConfig, path: Path, last: int, start: int = 0, resume: bool = False
) -> None:
    """Iterations start + 1 to last, of one figure each, without a training."""
    path.mkdir(exist_ok=True)
    with Trackers(config, lambda text: None) as all_of_them:
        all_of_them.begin(path, start, resume)
        for iteration in range(start + 1, last + 1):
            all_of_them.log(iteration, {"entropy/exact": 1 / iteration})


# --- the setting ---


def test_the_setting_is_a_name_a_list_or_a_table(tmp_path: Path) -> None:
    assert recipe(tmp_path, "wandb").log.to == ("wandb",)
    assert recipe(tmp_path, ["wandb", "mlflow"]).log.to == ("wandb", "mlflow")
    config = recipe(tmp_path, {"to": ["tensorboard"], "project": "p", "name": "n"})
    assert (config.log.to, config.log.project, config.log.name) == (("tensorboard",), "p", "n")
    assert recipe(tmp_path, []).log.to == ()
    assert from_dict(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize(
    ("log", "more", "words"),
    [
        ("tensorbord", {}, "Did you mean 'tensorboard'"),
        (["wandb", "wandb"], {}, "log.to names a tracker twice: wandb, wandb"),
        ({"to": [], "project": " "}, {}, "log.project is empty"),
        ({"to": [], "name": "a/b"}, {}, "without a slash"),
        ({"to": [], "name": "a\nb"}, {}, "of one line"),
        ({"too": []}, {}, "log.too"),
        ("wandb", {"host": "trl", "trl": {"report_to": "none"}}, "drop trl.report_to"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, log, more, words) -> None:
    with pytest.raises(ValueError, match=words.replace("(", "\\(")):
        recipe(tmp_path, log, **more)


@pytest.mark.parametrize(
    "words",
    ["--log wandb tensorboard", "--log wandb,tensorboard", "--log=wandb,tensorboard",
     "--log.to wandb tensorboard"],
)  # fmt: skip
def test_spellings_of_the_flag(words: str) -> None:
    args = named([*words.split(), "--seed", "1,2"], "log", "to")
    assert args == ["--log.to", "wandb", "tensorboard", "--seed", "1,2"]


def test_every_tracker_is_a_setting_and_is_documented() -> None:
    expected = f"`Tracker` in config/instruments.py must name {', '.join(SERVICES)}"
    assert {*get_args(Tracker)} == {*SERVICES}, expected
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    page = (ROOT / "docs/trackers.md").read_text()
    for name in SERVICES:
        assert f"`{name}`" in page, f"docs/trackers.md does not name the tracker `{name}`"
        assert name in extras, f"pyproject.toml has no extra {name!r}"


@pytest.mark.parametrize("name", SERVICES)
def test_one_that_is_not_installed_is_refused_with_its_extra(
    tmp_path, monkeypatch, capsys, name: str
) -> None:
    monkeypatch.setattr(outside.util, "find_spec", lambda module: None)
    output = tmp_path / "run"
    assert main(["train", "--method", "grpo", "--log", name, "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert f"pip install 'entrostat[{name}]'" in error
    assert error.count("\n") == 1
    refused(lambda: train(recipe(output, name)), "is not installed")
    assert not output.exists()


# --- a tracker that raises never costs the run ---


def test_a_tracker_is_told_every_iteration_and_the_end(tmp_path: Path, fake: Path) -> None:
    run = train(recipe(tmp_path / "run", "trackio"))
    first, *between, last = told(fake)
    assert first == ["init", "entrostat", "run", "never", 3]
    assert last == ["finish"]
    metrics, evaluations = rows(run), rows(run, "evaluation.jsonl")
    assert [what[1] for what in between] == [0, 1, 2, 3]
    for _, step, figures in between[1:]:
        (line,) = [row for row in metrics if row["iteration"] == step]
        own = {key: value for key, value in figures.items() if not key.startswith("eval/")}
        assert own == {key: value for key, value in line.items() if key != "iteration"}
    for row in evaluations:
        (figures,) = [what[2] for what in between if what[1] == row["iteration"]]
        assert figures[f"eval/{row['split']}/avg@k"] == row["avg@k"]
    seal = json.loads((run / "trackers/trackio.json").read_text())
    assert (seal["id"], seal["logged"]) == ("run", 3)


def test_an_alarm_is_pushed(tmp_path: Path, fake: Path) -> None:
    band = {"low": "2x", "high": "9x"}  # the first entropy is outside
    run = train(recipe(tmp_path / "run", "trackio", alarm=band, iterations=9))
    (pushed,) = [what for what in told(fake) if what[0] == "alert"]
    assert pushed[1] == "entropy alarm"
    assert pushed[2].startswith("alarm: ")
    assert max(row.get("alarm/raised", 0) for row in rows(run)) == 1


def test_trls_callback_pushes_it_where_trackio_runs(fake: Path) -> None:
    pytest.importorskip("trl")
    from entrostat.trainers.trl import EntropyAlarm

    alarm = EntropyAlarm(low="2x", high="9x")
    state, control = SimpleNamespace(log_history=[]), SimpleNamespace()
    alarm.on_train_begin(SimpleNamespace(report_to=["trackio"]), state, control)
    for _ in range(9):
        alarm.on_log(None, state, control, {"reward": 0.0, "entropy": 0.5})
    assert [what[:2] for what in told(fake)] == [["alert", "entropy alarm"]]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("raise", "trackio raised OSError: the disk of the server is full"),
        ("exit", "trackio raised SystemExit: 3"),
        ("init", "trackio raised RuntimeError: no such server"),
    ],
)
def test_one_that_raises_is_dropped_with_one_warning(
    tmp_path, fake, monkeypatch, mode, words
) -> None:
    monkeypatch.setenv("ENTROSTAT_FAKE", mode)
    config = recipe(tmp_path / "run", "trackio")
    with pytest.warns(UserWarning, match="trackio") as caught:
        follow(config, tmp_path / "run", 6)
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(words + ". The run goes on without it")
    if mode != "init":
        assert logged(fake) == [1]


def test_a_training_goes_on_without_one_that_raises(tmp_path, fake, monkeypatch) -> None:
    monkeypatch.setenv("ENTROSTAT_FAKE", "raise")
    with pytest.warns(UserWarning, match="trackio raised OSError"):
        run = train(recipe(tmp_path / "run", ["trackio", "tensorboard"]))
    assert [row["iteration"] for row in rows(run)] == [1, 2, 3]
    assert logged(fake) == [0, 1]
    seals = {
        name: json.loads((run / f"trackers/{name}.json").read_text())
        for name in ("trackio", "tensorboard")
    }
    assert {name: seal["logged"] for name, seal in seals.items()} == {
        "trackio": 2, "tensorboard": 3,
    }  # fmt: skip


def test_one_that_cannot_be_imported_is_refused_before_the_first_iteration(
    tmp_path, fake, monkeypatch
) -> None:
    monkeypatch.setenv("ENTROSTAT_FAKE", "import")
    refused(
        lambda: follow(recipe(tmp_path / "run", "trackio"), tmp_path / "run", 3),
        "its library is broken",
        "entrostat[trackio]",
    )
    assert not fake.exists()
    (tmp_path / "run/.lock").touch()
    check_output(tmp_path / "run", 3, resume=False)  # the directory can be used again


# --- a resumed run goes on in the tracker ---


def write_logs(run: Path, last: int) -> None:
    """As a run leaves them that has an evaluation before the first iteration."""
    run.mkdir(exist_ok=True)
    evaluation = {"iteration": 0, "split": "test", "prompts": 2, "k": 2, "avg@k": 0.25}
    (run / "evaluation.jsonl").write_text(json.dumps(evaluation) + "\n")
    lines = [{"iteration": i, "entropy/exact": 1 / i} for i in range(1, last + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_resumed_run_logs_no_step_twice(tmp_path: Path, fake: Path) -> None:
    run = tmp_path / "run"
    config = recipe(run, "trackio")
    follow(config, run, 3)
    write_logs(run, 2)  # its checkpoint is of iteration 2: the third is made again
    follow(config, run, 5, start=2, resume=True)
    assert logged(fake) == [1, 2, 3, 4, 5]
    begun = [what[1:4] for what in told(fake) if what[0] == "init"]
    assert begun == [["entrostat", "run", "never"], ["entrostat", "run", "allow"]]


def test_a_tracker_that_comes_later_is_given_what_there_is(tmp_path: Path, fake: Path) -> None:
    write_logs(tmp_path / "run", 4)  # the last two have no checkpoint
    follow(recipe(tmp_path / "run", "trackio"), tmp_path / "run", 3, start=2, resume=True)
    assert [what[1:] for what in told(fake) if what[0] == "log"] == [
        [0, {"eval/test/avg@k": 0.25}], [1, {"entropy/exact": 1.0}],
        [2, {"entropy/exact": 0.5}], [3, {"entropy/exact": 1 / 3}],
    ]  # fmt: skip


def test_a_lost_tracker_is_brought_what_it_missed(tmp_path, fake, monkeypatch) -> None:
    run = tmp_path / "run"
    config = recipe(run, "trackio")
    monkeypatch.setenv("ENTROSTAT_FAKE", "raise")
    with pytest.warns(UserWarning, match="raised OSError"):
        follow(config, run, 5)
    monkeypatch.setenv("ENTROSTAT_FAKE", "")
    write_logs(run, 5)
    follow(config, run, 6, start=5, resume=True)
    # the one that it failed at may have arrived or not: it is not given twice
    assert logged(fake) == [1, 3, 4, 5, 6]


def test_a_run_that_begins_again_forgets_the_earlier_try(tmp_path: Path, fake: Path) -> None:
    config = recipe(tmp_path / "run", "trackio")
    follow(config, tmp_path / "run", 2)
    follow(config, tmp_path / "run", 1)
    assert logged(fake) == [1, 2, 1]
    assert [what[3] for what in told(fake) if what[0] == "init"] == ["never", "never"]
    (tmp_path / "run/trackers/trackio.json").write_text('{"id": 7}')  # damaged: a run of its own
    follow(config, tmp_path / "run", 3, start=2, resume=True)
    assert [what[3] for what in told(fake) if what[0] == "init"][-1] == "never"


# --- the real ones, offline ---


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab run with TensorBoard and W&B, stopped after its third iteration and resumed."""
    folder = tmp_path_factory.mktemp("followed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        config = recipe(
            folder / "grpo", ["tensorboard", "wandb"], save={"checkpoint_every": 2}, iterations=4
        )
        with pytest.raises(Stop):
            train(config, progress=StopAfter(3))
        return train(config, resume=True)


@pytest.mark.long
def test_tensorboard_has_the_figures_once(followed: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(followed / "trackers/tensorboard"), {"scalars": 0})
    found.Reload()
    metrics = rows(followed)
    for key in ("entropy/exact", "reward/mean", "grad/norm"):
        events = found.Scalars(key)
        assert [event.step for event in events] == [1, 2, 3, 4]
        assert [event.value for event in events] == pytest.approx([row[key] for row in metrics])
    (first, *_) = found.Scalars("eval/test/avg@k")
    assert (first.step, first.value) == (0, rows(followed, "evaluation.jsonl")[0]["avg@k"])


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    skipped = ("time/", "eval/")  # an iteration that was made again took another time
    return {key: value for key, value in row.items() if not key.startswith(skipped)}


@pytest.mark.parametrize(("name", "exact"), [("tensorboard", False), ("wandb", True)])
def test_what_we_read_is_what_the_run_wrote(followed: Path, name: str, exact: bool) -> None:
    run = read(followed / "trackers" / name)
    title = {"tensorboard": "TensorBoard", "wandb": "W&B"}[name]
    assert run.source == f"entrostat through {title}"
    assert (run.problems, run.done) == ((), 4)
    assert not any("more than once" in note for note in run.notes)
    assert run.planned == (4 if exact else None)  # W&B keeps the settings
    for row, own in zip(run.metrics[1:], rows(followed), strict=True):
        expected = timeless(own)
        assert timeless(row) == (expected if exact else pytest.approx(expected, rel=1e-6))


def test_wandb_goes_on_in_the_same_run(followed: Path) -> None:
    seal = json.loads((followed / "trackers/wandb.json").read_text())
    files = sorted(followed.glob("trackers/wandb/offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{seal['id']}.wandb"] * 2
    assert seal["place"].startswith("offline: wandb sync ")


def test_wandb_without_a_login_is_offline(tmp_path, monkeypatch) -> None:
    for key in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    follow(recipe(tmp_path / "run", "wandb"), tmp_path / "run", 2)
    run = read(tmp_path / "run/trackers")
    assert run.series("entropy/exact") == ([1, 2], [1.0, 0.5])


def test_a_run_of_the_callers_in_wandb_stays_its_own(tmp_path, monkeypatch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    with wandb.init(dir=tmp_path / "own", settings={"silent": True, "console": "off"}) as own:
        follow(recipe(tmp_path / "run", "wandb"), tmp_path / "run", 2)
        assert wandb.run is own
        own.log({"mine": 1.0})
    assert read(tmp_path / "run/trackers").series("entropy/exact") == ([1, 2], [1.0, 0.5])


def test_mlflow(tmp_path, monkeypatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/store")
    config = recipe(tmp_path / "run", {"to": ["mlflow"], "project": "p", "name": "n"})
    follow(config, tmp_path / "run", 2)
    follow(config, tmp_path / "run", 3, start=1, resume=True)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    assert (run.info.run_name, run.info.status) == ("n", "FINISHED")
    assert run.data.params["sampling.prompts"] == "4"
    history = client.get_metric_history(run.info.run_id, "entropy/exact")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]


def test_trackio(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))  # read when it is imported
    pytest.importorskip("trackio")
    config = recipe(tmp_path / "run", {"to": ["trackio"], "project": "p", "name": "n"})
    follow(config, tmp_path / "run", 2)
    follow(config, tmp_path / "run", 3, start=1, resume=True)
    code = (
        "import json, trackio; from trackio.sqlite_storage import SQLiteStorage as s; "
        "print('\\n', json.dumps([[r['step'], r['entropy/exact']] for r in s.get_logs('p', 'n')]))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(said.splitlines()[-1]) == [[1, 1.0], [2, 0.5], [3, 1 / 3]]


# --- names that MLflow takes; figures of evaluations ---


def test_names_and_settings_for_mlflow() -> None:
    from entrostat.config import flat
    from entrostat.runs.trackers.services import mlflow_name

    assert mlflow_name("eval/a//b@4(x)") == "eval/a/b_at_4_x_"
    settings = flat({"a": {"b": 1, "c@": "x"}, "d": []})
    assert [(mlflow_name(key), value) for key, value in settings] == [
        ("a.b", 1),
        ("a.c_at_", "x"),
        ("d", []),
    ]
    assert len(mlflow_name("x" * 999)) == 250


def test_only_numbers_are_figures() -> None:
    row = {"iteration": 3, "split": "test", "k": 4, "prompts": 9, "avg@k": 0.5, "entropy": None}
    assert trackers.evaluated([row]) == {"eval/test/avg@k": 0.5}
    assert trackers.evaluated([row | {"set": "hard"}]) == {"eval/hard/avg@k": 0.5}
