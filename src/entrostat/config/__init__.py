"""The configuration of a training run.

settings.py    the settings as dataclasses, with their defaults and ranges
evaluation.py  those of evaluation in training
instruments.py analyses and forecasts
trackers.py    where figures go beside the run's own files
reader.py      TOML files and nested tables into them, strictly
"""

from ..model_files import NOWHERE as NOWHERE
from ..model_files import TINY as TINY
from ..model_files import check_model as check_model
from .instruments import Analyze, Forecast
from .reader import at_hand, from_dict, load, merge, toml_value
from .settings import (
    EvalSet,
    Evaluation,
    Lora,
    Numerics,
    Optim,
    Prompt,
    Sampling,
    Save,
    Scoring,
    TrainConfig,
)
from .trackers import Trackers

__all__ = [
    "Analyze", "EvalSet", "Evaluation", "Forecast", "Lora", "Numerics", "Optim", "Prompt",
    "Sampling", "Save", "Scoring", "Trackers", "TrainConfig", "at_hand", "from_dict", "load",
    "merge", "toml_value",
]  # fmt: skip
