"""The trackers of `--log`, one class each; and what TRL's and veRL's own are told about a run.

An iteration is a tracker's step. Nothing is uploaded but figures and settings: no code, no model,
no rollouts. To add a tracker, write a class here and put its name into `SERVICES` and
`config.instruments.Tracker`.

A tracker runs in a process of its own (`main`), which reads one order a line and answers each with
one line:

    {"folder": ..., "project": ..., ...}     -> {"imported": ...}, then {"begun": where}
    {"iteration": 3, "figures": {...}}       -> {"done": 3}
    {"alert": in words}                      -> {"done": null}
    {"finish": true}                         -> {"finished": true}

What goes wrong is the last answer: {"failed": in words}. Where orders end without "finish" the run
was killed, and the tracker is told so.

W&B and MLflow read what TRL and veRL have them do from the environment; that is where a resumed
run's id goes. What the user has set there stays.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ...errors import in_one_line
from ...logs.files import atomic
from ...logs.lines import read_json
from ...logs.run import called

Figures = Mapping[str, float]
ALARM = "entropy alarm"


class Service(Protocol):
    """What the class of a tracker has."""

    title: ClassVar[str]  # the tracker's name in messages
    # the module that the tracker imports; without it the run is refused before it starts. The extra
    # that installs it has the tracker's name. "": Python is enough.
    package: ClassVar[str]
    id: str  # the tracker's id of the run; a resumed run gets it back
    place: str  # where the figures go, for the terminal

    def __init__(self, start: Mapping[str, Any], id: str) -> None:
        """Begin a run, or go on with one.

        Args:
            start: `folder` (RUN/trackers), `project`, `run` (the run's name), `config` (settings).
            id: the attribute `id` of the run that is resumed; "" for a new run.
        """
        ...

    def log(self, iteration: int, figures: Figures) -> None:
        """Log an iteration's figures. Iterations come in order, each once."""
        ...

    def alert(self, words: str) -> None:
        """Push a raised alarm, where the tracker can."""
        ...

    def finish(self, ok: bool) -> None:
        """Close the run; `ok` is False where training failed or was killed."""
        ...


class WandB:
    """Weights & Biases; offline where there is no login, or no server, at the start."""

    title: ClassVar[str] = "W&B"
    package: ClassVar[str] = "wandb"

    def __init__(self, start: Mapping[str, Any], id: str) -> None:
        import wandb

        given: dict[str, Any] = {
            "project": start["project"], "name": start["run"], "id": id,
            "dir": start["folder"], "config": start["config"], "resume": "allow",
            "settings": wandb.Settings(silent=True, console="off", disable_code=True),
        }  # fmt: skip
        try:
            self._run = wandb.init(**given)
        except wandb.Error:
            if os.environ.get("WANDB_MODE"):
                raise
            self._run = wandb.init(**given, mode="offline")
        self.id = str(self._run.id)
        here = self._run.dir.removesuffix("/files")
        self.place = f"offline: wandb sync {here}" if self._run.offline else str(self._run.url)

    def log(self, iteration: int, figures: Figures) -> None:
        self._run.log(dict(figures), step=iteration, commit=True)

    def alert(self, words: str) -> None:
        self._run.alert(ALARM, words)

    def finish(self, ok: bool) -> None:
        self._run.finish(exit_code=0 if ok else 1)


class Trackio:
    """trackio: local, or where TRACKIO_SPACE_ID says. A run goes on under its name."""

    title: ClassVar[str] = "trackio"
    package: ClassVar[str] = "trackio"

    def __init__(self, start: Mapping[str, Any], id: str) -> None:
        import trackio

        self.id = id or start["run"]
        self._run = trackio.init(
            start["project"], self.id, config=dict(start["config"]),
            resume="allow" if id else "never", embed=False,
        )  # fmt: skip
        self.place = f"trackio show --project {start['project']}"

    def log(self, iteration: int, figures: Figures) -> None:
        self._run.log(dict(figures), step=iteration)

    def alert(self, words: str) -> None:
        import trackio

        trackio.alert(ALARM, words)

    def finish(self, ok: bool) -> None:
        self._run.finish()


class TensorBoard:
    """Event files in the run's directory, by TensorBoard's own writer."""

    title: ClassVar[str] = "TensorBoard"
    package: ClassVar[str] = "tensorboard"

    def __init__(self, start: Mapping[str, Any], id: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(start["folder"]) / "tensorboard"
        self.id, self.place = id or "tensorboard", f"tensorboard --logdir {folder}"
        self._writer, self._event, self._summary = EventFileWriter(str(folder)), Event, Summary

    def log(self, iteration: int, figures: Figures) -> None:
        values = [self._summary.Value(tag=k, simple_value=v) for k, v in figures.items()]
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=time.time(), step=iteration, summary=summary))
        self._writer.flush()

    def alert(self, words: str) -> None:
        """None: it has no such thing; `alarm/raised` is among the figures."""

    def finish(self, ok: bool) -> None:
        self._writer.close()


class MLflow:
    """MLflow, where MLFLOW_TRACKING_URI says, else in its own default."""

    title: ClassVar[str] = "MLflow"
    package: ClassVar[str] = "mlflow"

    def __init__(self, start: Mapping[str, Any], id: str) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        if id:
            self._client.update_run(id, status="RUNNING")
        else:
            found = self._client.get_experiment_by_name(start["project"])
            place = (
                self._client.create_experiment(start["project"])
                if found is None
                else found.experiment_id
            )
            id = self._client.create_run(place, run_name=start["run"]).info.run_id
            settings = [Param(k, str(v)[:500]) for k, v in flat(start["config"])]
            for first in range(0, len(settings), 100):  # it takes so many at once
                self._client.log_batch(id, params=settings[first : first + 100])
        self.id, self.place = id, f"run {id} at {self._client.tracking_uri}"

    def log(self, iteration: int, figures: Figures) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(mlflow_name(k), v, now, iteration) for k, v in figures.items()]
        for first in range(0, len(metrics), 1000):
            self._client.log_batch(self.id, metrics=metrics[first : first + 1000])

    def alert(self, words: str) -> None:
        self._client.set_tag(self.id, ALARM, words)

    def finish(self, ok: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if ok else "FAILED")


def alert_here(names: Collection[str], words: str) -> None:
    """Push an alarm through trackers that other code has begun in this process."""
    if "trackio" in names:
        import trackio

        trackio.alert(ALARM, words)
    if "wandb" in names:
        import wandb

        if wandb.run is not None:
            wandb.run.alert(ALARM, words)


SERVICES: dict[str, type[Service]] = {
    "wandb": WandB, "trackio": Trackio, "tensorboard": TensorBoard, "mlflow": MLflow,
}  # fmt: skip


def mlflow_name(key: str) -> str:
    """A metric's name as MLflow takes it: no `@`, nothing but letters, digits and `_.-:/ `.

    Example:
        >>> mlflow_name("eval/test/avg@k")
        'eval/test/avg_at_k'
    """
    return re.sub(r"[^/\w.\- :]", "_", re.sub(r"/+", "/", key.replace("@", "_at_")))[:250]


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        else:
            yield mlflow_name(name), value


if TYPE_CHECKING:
    from ...config import TrainConfig

FOLDER = "trackers"  # in a run's directory
TITLES = {name: service.title for name, service in SERVICES.items()}


def install(name: str) -> str:
    return f"pip install 'entrostat[{name}]'"


def check_installed(names: Sequence[str]) -> None:
    for name in names:
        package = SERVICES[name].package
        if package and util.find_spec(package) is None:
            raise ValueError(
                f"log.to {name!r}: {TITLES[name]} is not installed; {install(name)}, or drop it"
            )


def read_seal(folder: Path, name: str) -> dict[str, Any]:
    """What a tracker had of the run: `id`, `logged` (the last iteration it was given), `place`.

    What is damaged is taken for nothing: the tracker starts a run of its own.
    """
    seal = read_json(folder / f"{name}.json")
    good = type(seal.get("id")) is str and type(seal.get("logged")) is int
    return seal if good else {"id": "", "logged": -1, "place": ""}


def write_seal(folder: Path, name: str, seal: dict[str, Any]) -> None:
    """Write it, whole or not at all.

    Raises:
        OSError: the disk is full or refuses.
    """
    with atomic(folder / f"{name}.json") as part:
        part.write_text(json.dumps(seal), encoding="utf-8")


def environment(config: TrainConfig, path: Path) -> dict[str, str]:
    """What the environment says to the trackers of TRL and of veRL."""
    to, folder = config.log.to, (path / FOLDER).absolute()
    told: dict[str, str] = {}
    if "wandb" in to:
        told |= {
            "WANDB_PROJECT": config.log.project, "WANDB_NAME": name_of(config, path),
            "WANDB_DIR": str(folder), "WANDB_RESUME": "allow",
            "WANDB_RUN_ID": read_seal(folder, "wandb")["id"],
        }  # fmt: skip
    if "tensorboard" in to:  # TRL's name for it, and veRL's
        place = str(folder / "tensorboard")
        told |= {"TENSORBOARD_LOGGING_DIR": place, "TENSORBOARD_DIR": place}
    if "mlflow" in to:
        told["MLFLOW_EXPERIMENT_NAME"] = config.log.project
        told["MLFLOW_RUN_ID"] = read_seal(folder, "mlflow")["id"]
    return {key: value for key, value in told.items() if value}


def name_of(config: TrainConfig, path: Path) -> str:
    return config.log.name or called(path)


def open_folder(config: TrainConfig, path: Path, resume: bool) -> Path:
    """The trackers' folder in a run's directory, made where there are any.

    A new run forgets what an earlier try left. W&B's id of the run is chosen here, once.

    Raises:
        OSError: the disk is full or refuses.
    """
    folder = path / FOLDER
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    if config.log.to:
        folder.mkdir(exist_ok=True)
        for part in folder.glob(".*.part"):  # of a write that was cut short
            part.unlink()
    if "wandb" in config.log.to and not read_seal(folder, "wandb")["id"]:
        write_seal(folder, "wandb", {"id": secrets.token_hex(4), "logged": -1, "place": ""})
    return folder


_GRACE = 120.0  # seconds that a tracker may take to finish when the run was killed


def main(name: str, answers: int) -> None:
    threading.Thread(target=_outlive, args=(os.getppid(),), daemon=True).start()

    def answer(**said: Any) -> None:
        with suppress(BrokenPipeError):  # the run has gone; what it said is still to be done
            os.write(answers, json.dumps(said).encode() + b"\n")

    try:
        serve(name, answer)
    except BaseException as error:  # SystemExit too, which libraries raise
        import traceback

        traceback.print_exc()  # into the log
        answer(failed=f"raised {in_one_line(error)[:500]}")


def serve(name: str, answer: Any) -> None:
    start = json.loads(sys.stdin.buffer.readline())
    service = SERVICES[name]
    try:
        if service.package:
            importlib.import_module(service.package)
    except BaseException as error:
        answer(failed=f"cannot be imported ({in_one_line(error)[:300]})")
        return
    answer(imported=name)
    folder = Path(start["folder"])
    seal = read_seal(folder, name)
    tracker = service(start, seal["id"])
    seal |= {"id": tracker.id, "place": tracker.place}
    write_seal(folder, name, seal)
    answer(begun=tracker.place)
    ok = False
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if "finish" in order:
            ok = order["finish"]
            break
        if "alert" in order:
            tracker.alert(order["alert"])
            answer(done=None)
            continue
        if order["iteration"] > seal["logged"]:
            # before it is given: where a kill comes between, a tracker lacks one and has none twice
            write_seal(folder, name, seal | {"logged": order["iteration"]})
            seal["logged"] = order["iteration"]
            tracker.log(order["iteration"], order["figures"])
        answer(done=order["iteration"])
    tracker.finish(ok)
    answer(finished=True)


def _outlive(parent: int) -> None:
    """End this process, hanging or not, some time after the one that started it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(_GRACE)
    os._exit(1)
