"""Studies: several runs of one file, side by side, compared in one table and one page."""

from .runner import run_study

__all__ = ["run_study"]
