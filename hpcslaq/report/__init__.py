"""Reports of runs: one JSON-able value, tables of text, figures, and a page in HTML."""

from hpcslaq.report.build import RunReader, build_report, lost_share
from hpcslaq.report.history import History

__all__ = ["build_report", "RunReader", "History", "lost_share"]
