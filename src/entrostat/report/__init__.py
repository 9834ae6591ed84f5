"""Reports: one self-contained HTML page for a run, or one that compares several.

Nothing heavy is imported before a page is written.
"""

from .page import write_comparison, write_report, write_run_report
from .runs import Row, comparison_rows

__all__ = ["Row", "comparison_rows", "write_comparison", "write_report", "write_run_report"]
