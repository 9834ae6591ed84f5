"""Claims: what papers say, as statistics of a study's runs, and what the runs say to it."""

from .decide import VERDICTS, Decided, decide
from .file import Claim, Claims, check_claims, read_claims

__all__ = ["VERDICTS", "Claim", "Claims", "Decided", "check_claims", "decide", "read_claims"]
