"""Studies: several runs defined by one file, compared in one table and one page."""

from .runner import run_study

__all__ = ["run_study"]
