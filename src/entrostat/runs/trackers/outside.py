"""Which trackers are installed, and what TRL's and veRL's own are told about a run.

W&B and MLflow read what they are to do from the environment; that is where a resumed run's id goes.
What the user has set there stays.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...logs.files import atomic
from ...logs.lines import read_json
from ...logs.run import called
from .services import SERVICES

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
