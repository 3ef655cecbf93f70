"""The figures of a report as PNG images; needs the extra `report` (matplotlib).

Only matplotlib's object interface and its Agg canvas are used: no state, no display. With
up to eight jobs each has a colour of its own (Okabe and Ito's palette for colour-blind
readers); with more, colours follow the order of arrival on a scale that is monotone in
lightness.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcslaq.core.jobs import JobState
from hpcslaq.errors import LaunchError
from hpcslaq.record.jobsummary import JobSummary, Segment
from hpcslaq.record.summary import RunSummary
from hpcslaq.report.history import History, worker_steps
from hpcslaq.report.text import KINDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

#: Okabe and Ito's palette without black and yellow, which mark other things or fade on white.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7F7F7F", "#8C6D31")
_WIDTH_IN = 9.0
_DPI = 130
#: Most job names that are written beside an axis, and most groups of a job that are drawn.
_MAX_ROWS = 200
_MAX_GROUPS = 2000
#: With more jobs than this they are drawn together: one artist for each would take minutes.
_CROWD = 60
#: Columns of the picture of a crowd's workers, and points of all its loss curves together.
_MAX_COLUMNS = 1000
_MAX_POINTS = 200_000
#: Least normalised loss that is drawn.
_FLOOR = 1e-4

_TRAINING = ("compute", "reduce")


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_all(
    summary: RunSummary, history: History, rank_time: Mapping[str, float]
) -> dict[str, bytes]:
    """All figures that the run has something for: caption -> PNG.

    `rank_time` : rank-seconds by kind (`text.KINDS`). Raises LaunchError without matplotlib.
    """
    if not has_matplotlib():
        raise LaunchError('figures need matplotlib: pip install "hpcslaq[report]"')
    figures = {
        "Normalised loss of each job over time (1: its largest loss, 0: its least); "
        "the black line is the mean over the jobs that have begun": losses_figure(history),
        "Workers held by each job over time": workers_figure(summary, history),
        "Groups of each job over time: a bar for each group, a thin line while the job waits; "
        "a tick ends a job, a cross one that failed": groups_figure(summary, history),
        "Where the workers' time went": rank_time_figure(rank_time),
    }
    return {caption: to_png(figure) for caption, figure in figures.items() if figure is not None}


def losses_figure(history: History) -> Figure | None:
    """Normalised loss of each job over time; None where no job has a curve."""
    curves = {name: curve.normalised() for name, curve in history.curves.items()}
    if not any(curves.values()):
        return None
    figure, axes = new_figure(3.8)
    colours = _colours(history)
    drawn = {name: _thinned(points, len(curves)) for name, points in curves.items() if points}
    if len(curves) > _CROWD:
        _draw_crowd(axes, drawn, colours)
    else:
        _draw_curves(axes, drawn, colours)
    times, means = _mean_curve(curves, history)
    if len(curves) > 1:
        axes.plot(times, means, color="black", linewidth=1.8, label="mean", linestyle=(0, (4, 1.5)))
    axes.set_yscale("log")
    axes.set_ylim(_FLOOR * 0.8, 1.3)
    axes.set_ylabel("normalised loss (log scale)")
    _time_axis(axes, history)
    _legend(figure, axes, history)
    return figure


def _thinned(points: Sequence[tuple[float, float]], num_curves: int) -> list[tuple[float, float]]:
    """(s, share) of a curve, evenly thinned where all curves together have too many points."""
    stride = max(1, len(points) * num_curves // _MAX_POINTS)
    kept = [*points[::stride], points[-1]] if stride > 1 else points
    return [(at, max(share, _FLOOR)) for at, share in kept]


def _draw_curves(
    axes: Axes, curves: Mapping[str, list[tuple[float, float]]], colours: Mapping[str, Any]
) -> None:
    many = len(colours) > len(_PALETTE)
    for name, points in curves.items():
        axes.plot(
            [at for at, _ in points],
            [share for _, share in points],
            color=colours[name],
            linewidth=0.9 if many else 1.6,
            alpha=0.75 if many else 1.0,
            label=name,
            drawstyle="steps-post",
        )


def _draw_crowd(
    axes: Axes, curves: Mapping[str, list[tuple[float, float]]], colours: Mapping[str, Any]
) -> None:
    """The same curves as one artist."""
    from matplotlib.collections import LineCollection

    lines = []
    for points in curves.values():
        steps = [(at, before) for (_, before), (at, _) in itertools.pairwise(points)]
        corners = [point for pair in zip(points, steps, strict=False) for point in pair]
        lines.append([*corners, points[-1]])
    shades = [colours[name] for name in curves]
    axes.add_collection(LineCollection(lines, colors=shades, linewidths=0.9, alpha=0.75))


def workers_figure(summary: RunSummary, history: History) -> Figure | None:
    """Workers of each job over time as a stacked area; None where no group was formed."""
    segments = {name: job.segments for name, job in summary.jobs.items()}
    if not any(segments.values()):
        return None
    figure, axes = new_figure(3.4)
    colours = _colours(history)
    if len(segments) > _CROWD:
        most = _fill_crowd(axes, segments, colours, history.now)
    else:
        most = _fill_stairs(axes, segments, colours, history.now)
    limits = [*history.capacity, (history.now, history.capacity[-1][1])]
    axes.step(
        [at for at, _ in limits],
        [count for _, count in limits],
        where="post",
        color="black",
        linewidth=1.0,
        linestyle=":",
        label="workers there",
    )
    axes.set_ylim(0, max(most, *(count for _, count in limits), 1) * 1.06)
    axes.yaxis.set_major_locator(whole_numbers())
    axes.set_ylabel("workers (ranks)")
    _time_axis(axes, history)
    _legend(figure, axes, history)
    return figure


def _fill_stairs(
    axes: Axes, segments: Mapping[str, Sequence[Segment]], colours: Mapping[str, Any], now: float
) -> int:
    """Stack the jobs' workers as areas; the height of the stack."""
    times, counts = worker_steps(list(segments.values()), now)
    edges = [*times, times[-1]]
    bottom = [0] * len(times)
    for name, row in zip(segments, counts, strict=True):
        top = [low + count for low, count in zip(bottom, row, strict=True)]
        axes.stairs(top, edges, baseline=bottom, fill=True, color=colours[name], label=name)
        bottom = top
    return max(bottom)


def _fill_crowd(
    axes: Axes, segments: Mapping[str, Sequence[Segment]], colours: Mapping[str, Any], now: float
) -> int:
    """The same as an image: a column for each of many instants; the height of the stack.

    Time and memory grow with the segments and the workers, not with jobs times changes.
    """
    flat = [(s, colours[name]) for name, spells in segments.items() for s in spells]
    begin = np.array([segment.start for segment, _ in flat])
    end = np.array([now if segment.end is None else segment.end for segment, _ in flat])
    size = np.array([len(segment.members) for segment, _ in flat])
    shade = np.array([colour for _, colour in flat])
    instants = (np.arange(_MAX_COLUMNS) + 0.5) * (max(now, 1e-3) / _MAX_COLUMNS)
    held = [np.flatnonzero((begin <= at) & (at < end)) for at in instants.tolist()]
    most = max((int(size[rows].sum()) for rows in held), default=0)
    step = -(-most // _MAX_COLUMNS) or 1
    image = np.zeros((-(-most // step) or 1, _MAX_COLUMNS, 4))
    for column, rows in enumerate(held):
        stack = np.repeat(shade[rows], size[rows], axis=0)[::step]
        image[: len(stack), column] = stack
    axes.imshow(
        image,
        extent=(0.0, max(now, 1e-3), 0.0, float(image.shape[0] * step)),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    return most


def groups_figure(summary: RunSummary, history: History) -> Figure | None:
    """Gantt chart: one row per job, a bar per group, its shade the number of workers."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    jobs = list(summary.jobs.values())[:_MAX_ROWS]
    most = max((len(s.members) for job in jobs for s in job.segments), default=0)
    if most == 0:
        return None
    figure, axes = new_figure(min(1.1 + 0.26 * len(jobs), 1.6 + 0.17 * len(jobs)))
    # From the third of the scale on: the lightest blues vanish on white.
    scale = ListedColormap(colormaps["Blues"]([0.3 + 0.7 * i / 255 for i in range(256)]))
    shades = ScalarMappable(Normalize(1, max(most, 2)), scale)
    for row, job in enumerate(jobs):
        _draw_job(axes, row, job, history.now, shades.to_rgba)
    axes.set_ylim(len(jobs) - 0.4, -0.6)
    size = 8 if len(jobs) <= 30 else 6
    axes.set_yticks(range(len(jobs)), [short_name(job.spec.name) for job in jobs], fontsize=size)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    _time_axis(axes, history)
    bar = figure.colorbar(shades, ax=axes, pad=0.015, fraction=0.03, aspect=30)
    bar.set_label("workers (ranks)")
    bar.locator = whole_numbers()
    bar.update_ticks()
    return figure


def rank_time_figure(rank_time: Mapping[str, float]) -> Figure | None:
    """A bar per kind of rank-time, labelled with seconds and share; None without any."""
    values = [max(0.0, rank_time.get(kind, 0.0)) for kind in KINDS]
    total = math.fsum(values)
    if not total > 0:
        return None
    figure, axes = new_figure(2.7)
    rows = range(len(KINDS))
    colours = []
    for kind in KINDS:
        is_idle, is_training = kind in ("unreported", "idle"), kind in _TRAINING
        colours.append("#BBBBBB" if is_idle else _PALETTE[0] if is_training else _PALETTE[5])
    axes.barh(rows, [100 * value / total for value in values], color=colours, height=0.7)
    for row, value in zip(rows, values, strict=True):
        text = f" {value:,.2f} s  ({100 * value / total:.2f} %)"
        axes.text(100 * value / total, row, text, va="center", fontsize=8)
    axes.set_yticks(rows, list(KINDS.values()), fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 100 * max(values) / total * 1.25)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of the workers' time (%); blue: training, orange: lost, grey: idle")
    return figure


def new_figure(height_in: float) -> tuple[Figure, Axes]:
    """An empty figure with one set of axes, drawn without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, height_in), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.grid(visible=True, color="#E4E4E4", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG image."""
    buffer = io.BytesIO()
    # No date and no version inside: the same run gives the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _colours(history: History) -> dict[str, Any]:
    """A colour for each job, by order of arrival."""
    return palette(list(history.curves))


def palette(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each of these jobs, in order."""
    from matplotlib import colormaps

    if len(names) <= len(_PALETTE):
        return dict(zip(names, _PALETTE, strict=False))
    scale = colormaps["viridis"]
    # The last tenth of the scale is too light on white.
    return {name: scale(0.92 * index / (len(names) - 1)) for index, name in enumerate(names)}


def _legend(figure: Figure, axes: Axes, history: History) -> None:
    """Names beside the axes, or a scale of the order of arrival where there are many."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    num = len(history.curves)
    if num <= len(_PALETTE):
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(
            handles,
            [short_name(label) for label in labels],
            loc="outside right upper",
            fontsize=8,
            frameon=False,
        )
        return
    scale = ListedColormap(colormaps["viridis"]([0.92 * i / 255 for i in range(256)]))
    shades = ScalarMappable(Normalize(1, num), scale)
    bar = figure.colorbar(shades, ax=axes, pad=0.015, fraction=0.03, aspect=30)
    bar.set_label("job, by arrival")
    bar.locator = whole_numbers()
    bar.update_ticks()


def whole_numbers() -> Locator:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(integer=True)


def _time_axis(axes: Axes, history: History) -> None:
    axes.set_xlim(0, max(history.now, 1e-3))
    axes.set_xlabel("time since the start of the run (s)")
    for at in history.restarts:
        axes.axvline(at, color="#D55E00", linewidth=1.0, linestyle="--")
    for at in history.rank_losses:
        axes.axvline(at, color="#D55E00", linewidth=1.0, linestyle=":")


def _draw_job(
    axes: Axes, row: int, job: JobSummary, now: float, shade: Callable[[Any], Any]
) -> None:
    """A thin line from submission to end, and over it a bar for each group."""
    end = now if job.finished_at is None else job.finished_at
    axes.hlines(row, job.submitted_at, end, color="#AAAAAA", linewidth=1.0, zorder=1)
    bars, colours = [], []
    for segment in job.segments[-_MAX_GROUPS:]:
        until = now if segment.end is None else segment.end
        bars.append((segment.start, until - segment.start))
        colours.append(shade(len(segment.members)))
    axes.broken_barh(bars, (row - 0.38, 0.76), facecolors=colours, zorder=2)
    if job.finished_at is not None:
        is_bad = job.state is not JobState.DONE
        marker, colour = ("x", "#D55E00") if is_bad else ("|", "black")
        axes.plot([end], [row], marker=marker, color=colour, markersize=6, zorder=3, clip_on=False)


def _mean_curve(
    curves: Mapping[str, Sequence[tuple[float, float]]], history: History
) -> tuple[list[float], list[float]]:
    """Mean normalised loss over the jobs that have reported by then, at 400 times (s)."""
    times = np.arange(401) * history.now / 400
    total, count = np.zeros(401), np.zeros(401)
    for points in curves.values():
        if points:
            at, shares = np.array(points).T
            place = np.searchsorted(at, times, side="right")
            total += np.where(place > 0, shares[place - 1], 0.0)
            count += place > 0
    begun = count > 0
    means = np.maximum(total[begun] / count[begun], _FLOOR)
    return times[begun].tolist(), means.tolist()


def short_name(name: str, most: int = 28) -> str:
    """A name that fits beside an axis; matplotlib is kept from reading it as mathematics."""
    short = name if len(name) <= most else name[: most - 9] + "…" + name[-8:]
    return short.replace("$", r"\$")
