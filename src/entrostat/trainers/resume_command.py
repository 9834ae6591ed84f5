"""The command that resumes a stopped run."""

from __future__ import annotations

import dataclasses
import shlex

from ..config import TrainConfig
from ..tasks.trust import code_in
from .verl.config import code_in_verl


def resume_command(
    config: TrainConfig, python: str | None = None, ray_address: str | None = None
) -> str:
    """Build the command, with options that the run directory lacks; needs `config.output`."""
    words = ["entrostat", "train", "--resume", config.output]
    if code_in(dataclasses.asdict(config)) or code_in_verl(config.verl):
        words.append("--trust-code")
    if config.scoring.sandbox == "unsafe":
        words += ["--sandbox", "unsafe"]
    for flag, value in (("--verl-python", python), ("--ray-address", ray_address)):
        words += [flag, value] if value else []
    return shlex.join(words)
