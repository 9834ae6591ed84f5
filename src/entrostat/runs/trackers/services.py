"""The trackers of `--log`, one class each; and the environment of TRL's and veRL's own trackers.

An iteration is a tracker's step. Only metrics and settings are uploaded: no code, no model, no
rollouts. A tracker's name is also the name of the module that it imports and of the extra that
installs it. To add one, write a class here and put the name into `SERVICES` and
`config.instruments.Tracker`.

W&B and MLflow in TRL and veRL read their settings from environment variables, including a resumed
run's id. Variables set by the user are kept.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any, ClassVar

from ...config import TrainConfig, flat
from ...errors import in_one_line
from ...logs.files import atomic
from ...logs.lines import read_json
from ...logs.run import called

ALARM = "entropy alarm"
FOLDER = "trackers"  # in a run's directory


@dataclass(frozen=True)
class Started:
    """Information for a tracker when a run starts or resumes."""

    folder: Path  # RUN/trackers
    project: str
    name: str
    settings: Mapping[str, Any]
    id: str  # the resumed tracker's attribute `id`; "" for a new run


class Service(ABC):
    """One run in a tracker, through the tracker's library; the base of all trackers.

    Attributes:
        title: the tracker's name in messages.
        id: the tracker's id of the run; a resumed run gets it back.
        place: where the metrics go, for the terminal.
    """

    title: ClassVar[str]
    id: str
    place: str

    @abstractmethod
    def __init__(self, run: Started) -> None:
        """Start a run, or resume one."""

    @abstractmethod
    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        """Log an iteration's metrics. Iterations come in order, each once."""

    def alert(self, text: str) -> None:  # noqa: B027 - optional
        """Push a raised alarm, if the tracker can; `alarm/raised` is among the metrics."""

    @abstractmethod
    def finish(self, ok: bool) -> None:
        """Close the run; `ok` is False if training failed."""


class WandB(Service):
    """Weights & Biases; offline if there is no login or no server at the start."""

    title = "W&B"

    def __init__(self, run: Started) -> None:
        import wandb

        given: dict[str, Any] = {
            "project": run.project, "name": run.name, "id": run.id, "dir": run.folder,
            "config": dict(run.settings), "resume": "allow",
            "reinit": "create_new",  # separate from a run of the caller
            "settings": wandb.Settings(silent=True, console="off", disable_code=True),
        }  # fmt: skip
        mode = os.environ.get("WANDB_MODE") or (None if logged_in() else "offline")
        try:
            self._run = wandb.init(**given, mode=mode)
        except wandb.Error:
            if mode:
                raise
            self._run = wandb.init(**given, mode="offline")
        self.id = str(self._run.id)
        here = self._run.dir.removesuffix("/files")
        self.place = f"offline: wandb sync {here}" if self._run.offline else str(self._run.url)

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=iteration, commit=True)

    def alert(self, text: str) -> None:
        self._run.alert(ALARM, text)

    def finish(self, ok: bool) -> None:
        self._run.finish(exit_code=0 if ok else 1)


def logged_in() -> bool:
    """Whether W&B has a key, without asking for one."""
    import wandb

    try:
        return bool(wandb.login(prompt=False, verify=False))
    except (TypeError, wandb.Error):  # a version that would prompt, or an invalid key
        return "WANDB_API_KEY" in os.environ


class Trackio(Service):
    """trackio: local, or in TRACKIO_SPACE_ID. A run resumes under its name."""

    title = "trackio"

    def __init__(self, run: Started) -> None:
        import trackio

        self.id = run.id or run.name
        self._run = trackio.init(
            run.project, self.id, config=dict(run.settings),
            resume="allow" if run.id else "never", embed=False,
        )  # fmt: skip
        self.place = f"trackio show --project {run.project}"

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=iteration)

    def alert(self, text: str) -> None:
        alert_here(["trackio"], text)

    def finish(self, ok: bool) -> None:
        self._run.finish()


class TensorBoard(Service):
    """Event files in the run's directory, by PyTorch's writer."""

    title = "TensorBoard"

    def __init__(self, run: Started) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard"
        self.id, self.place = "tensorboard", f"tensorboard --logdir {folder}"
        self._writer = SummaryWriter(str(folder))

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def finish(self, ok: bool) -> None:
        self._writer.close()


class MLflow(Service):
    """MLflow, at MLFLOW_TRACKING_URI, else at its own default."""

    title = "MLflow"

    def __init__(self, run: Started) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric, self.id = MlflowClient(), Metric, run.id
        if run.id:
            self._client.update_run(run.id, status="RUNNING")
        else:
            found = self._client.get_experiment_by_name(run.project)
            place = found.experiment_id if found else self._client.create_experiment(run.project)
            self.id = self._client.create_run(place, run_name=run.name).info.run_id
            settings = [Param(mlflow_name(k), str(v)[:500]) for k, v in flat(run.settings)]
            for first in range(0, len(settings), 100):  # the limit of a request
                self._client.log_batch(self.id, params=settings[first : first + 100])
        self.place = f"run {self.id} at {self._client.tracking_uri}"

    def log(self, iteration: int, figures: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(mlflow_name(k), v, now, iteration) for k, v in figures.items()]
        self._client.log_batch(self.id, metrics=metrics)

    def alert(self, text: str) -> None:
        self._client.set_tag(self.id, ALARM, text)

    def finish(self, ok: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if ok else "FAILED")


SERVICES: dict[str, type[Service]] = {
    "wandb": WandB, "trackio": Trackio, "tensorboard": TensorBoard, "mlflow": MLflow,
}  # fmt: skip
TITLES = {name: service.title for name, service in SERVICES.items()}


def alert_here(names: Collection[str], words: str) -> None:
    """Push an alarm through trackers that other code has started in this process."""
    if "trackio" in names:
        import trackio

        trackio.alert(ALARM, words)
    if "wandb" in names:
        import wandb

        if wandb.run is not None:
            wandb.run.alert(ALARM, words)


def mlflow_name(key: str) -> str:
    """A metric's name valid in MLflow: no `@`, only letters, digits and `_.-:/ `.

    Example:
        >>> mlflow_name("eval/test/avg@k")
        'eval/test/avg_at_k'
    """
    return re.sub(r"[^/\w.\- :]", "_", re.sub(r"/+", "/", key.replace("@", "_at_")))[:250]


def check_installed(names: Sequence[str]) -> None:
    for name in names:
        if util.find_spec(name) is None:
            raise ValueError(
                f"log.to {name!r}: {TITLES[name]} is not installed; pip install "
                f"'entrostat[{name}]', or drop it"
            )


def warn_of(name: str, error: BaseException, more: str = "") -> None:
    warnings.warn(
        f"{TITLES[name]} raised {in_one_line(error)[:500]}. The run goes on without it: all "
        f"figures are in metrics.jsonl{more}",
        stacklevel=4,
    )


def read_seal(folder: Path, name: str) -> dict[str, Any]:
    """A tracker's record of the run: `id`, `logged` (the last iteration it received), `place`.

    A damaged record counts as none: the tracker starts a new run.
    """
    seal = read_json(folder / f"{name}.json")
    good = type(seal.get("id")) is str and type(seal.get("logged")) is int
    return seal if good else {"id": "", "logged": -1, "place": ""}


def write_seal(folder: Path, name: str, seal: dict[str, Any]) -> None:
    with atomic(folder / f"{name}.json") as part:
        part.write_text(json.dumps(seal), encoding="utf-8")


def environment(config: TrainConfig, path: Path) -> dict[str, str]:
    """The environment variables for the trackers of TRL and of veRL."""
    to, folder = config.log.to, (path / FOLDER).absolute()
    told: dict[str, str] = {}
    if "wandb" in to:
        told |= {
            "WANDB_PROJECT": config.log.project, "WANDB_NAME": name_of(config, path),
            "WANDB_DIR": str(folder), "WANDB_RESUME": "allow",
            "WANDB_RUN_ID": read_seal(folder, "wandb")["id"],
        }  # fmt: skip
    if "tensorboard" in to:  # the name in TRL and in veRL
        place = str(folder / "tensorboard")
        told |= {"TENSORBOARD_LOGGING_DIR": place, "TENSORBOARD_DIR": place}
    if "mlflow" in to:
        told["MLFLOW_EXPERIMENT_NAME"] = config.log.project
        told["MLFLOW_RUN_ID"] = read_seal(folder, "mlflow")["id"]
    return {key: value for key, value in told.items() if value}


def name_of(config: TrainConfig, path: Path) -> str:
    return config.log.name or called(path)


def open_folder(config: TrainConfig, path: Path, resume: bool) -> Path:
    """The trackers' folder in a run's directory, created if there are trackers.

    A new run removes the files of an earlier attempt. W&B's id of the run is chosen here, once.
    """
    folder = path / FOLDER
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    if config.log.to:
        folder.mkdir(exist_ok=True)
        for part in folder.glob(".*.part"):  # of an interrupted write
            part.unlink()
    if "wandb" in config.log.to and not read_seal(folder, "wandb")["id"]:
        write_seal(folder, "wandb", {"id": secrets.token_hex(4), "logged": -1, "place": ""})
    return folder
