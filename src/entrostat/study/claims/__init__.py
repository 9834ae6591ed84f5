"""Claims of papers as statistics of a study's runs, and the verdicts on them."""

from .decide import VERDICTS, Decided, decide
from .file import LEAST, Claim, Claims, check_claims, misspelt_experiments, read_claims

__all__ = [
    "LEAST", "VERDICTS", "Claim", "Claims", "Decided", "check_claims", "decide",
    "misspelt_experiments", "read_claims",
]  # fmt: skip
