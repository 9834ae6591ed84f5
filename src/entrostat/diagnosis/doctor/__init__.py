"""The doctor: what makes a run's figures untrue, or a method idle, found before it starts.

table.py      the checks, and who asks them
settings.py   by the settings alone: also at the start of every `train`
subject.py    a policy and a few rollouts of it, an update tried and taken back
numbers.py    rounding, cancellation, sampler against trainer, temperature
tokens.py     padding, eos, group sizes, groups without a signal
acting.py     ratio, selection, gates, penalties;  knobs.py  targets;  cut.py  two ranks
recorded.py   the same by what a run left
"""

from .finding import Finding
from .recorded_rollouts import rollouts_at
from .subject import PROMPTS
from .table import CHECKS, examine, examine_run, lines, preflight, summary

__all__ = [
    "CHECKS", "PROMPTS", "Finding", "examine", "examine_run", "lines", "preflight", "rollouts_at",
    "summary",
]  # fmt: skip
