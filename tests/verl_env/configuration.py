"""veRL's own configuration, composed by Hydra as its `main_ppo` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import verl
from hydra import compose as hydra_compose
from hydra import initialize_config_dir


def compose(overrides: Sequence[str], name: str = "ppo_trainer") -> Any:
    """The configuration of `python -m verl.trainer.main_ppo OVERRIDES`."""
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return hydra_compose(name, overrides=list(overrides))
