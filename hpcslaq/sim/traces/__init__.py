"""Everybody's traces: jobs with arrival, workers and duration, from nine file formats.

`read_trace` reads one (the format is recognised, or named), `jobs.sim_jobs` makes jobs of
the simulator from it, `pollux` adds Pollux' tables of throughput and convergence.
"""

from hpcslaq.sim.traces.base import Trace, TraceError, TraceJob
from hpcslaq.sim.traces.reading import FORMATS, read_trace, summary_of
from hpcslaq.sim.traces.tables import format_own

__all__ = [
    "FORMATS",
    "Trace",
    "TraceError",
    "TraceJob",
    "format_own",
    "read_trace",
    "summary_of",
]
