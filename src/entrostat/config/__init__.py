"""The configuration of a training run.

settings.py    the settings as dataclasses, with their defaults and ranges
instruments.py those of what is measured beside training, alarms and trackers
ranges.py      a setting's range, beside its default
reader.py      TOML files and nested tables into them, strictly
"""

from ..model_files import NOWHERE as NOWHERE
from ..model_files import TINY as TINY
from ..model_files import check_model as check_model
from .instruments import Analyze, EvalSet, Evaluation, Forecast, Trackers
from .reader import at_hand, flat, from_dict, load, merge, toml_value
from .settings import Lora, Numerics, Optim, Prompt, Sampling, Save, Scoring, TrainConfig

__all__ = [
    "Analyze", "EvalSet", "Evaluation", "Forecast", "Lora", "Numerics", "Optim", "Prompt",
    "Sampling", "Save", "Scoring", "Trackers", "TrainConfig", "at_hand", "flat", "from_dict",
    "load", "merge", "toml_value",
]  # fmt: skip
