"""Figures are drawn for what there is, in the size and colours that they promise."""

from __future__ import annotations

import sys

import pytest

from hpcslaq.core.events import GroupFormed, JobSubmitted, ProgressReported, RunStarted
from hpcslaq.core.jobs import JobSpec
from hpcslaq.errors import LaunchError
from hpcslaq.record.codec import Kind
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.record.summary import RunSummary
from hpcslaq.report import figures
from hpcslaq.report.build import RunReader
from hpcslaq.report.history import History, worker_steps

pytest.importorskip("matplotlib")

RANK_TIME = {"compute": 6.0, "reduce": 3.0, "idle": 1.0}


def read(run: RunDirectory) -> RunReader:
    reader = RunReader(run)
    reader.poll()
    return reader


def crowd(num_jobs: int) -> tuple[RunSummary, History]:
    """Many jobs that each hold a worker for the second after their arrival."""
    summary, history = RunSummary("slaq"), History()

    def fold(now: float, item: object) -> None:
        summary.fold(Kind.EVENT, now, item)
        history.fold(now, item)

    fold(0.0, RunStarted(dict.fromkeys(range(1, num_jobs + 1), "n")))
    for number in range(num_jobs):
        name = f"job-{number}"
        fold(number, JobSubmitted(JobSpec(name, "m", "d", 1, 9)))
        summary.jobs[name].promised = {number + 1}
        summary.jobs[name].state = summary.jobs[name].state.STARTING
        fold(number, GroupFormed(name, number + 1, (number + 1,)))
        fold(number + 1, ProgressReported(name, number + 1, 1, (2.0, 1.0), 1, 1.0, 1))
    return summary, history


def test_every_figure_of_an_ended_run_is_a_png(ended_run: RunDirectory) -> None:
    reader = read(ended_run)
    images = figures.draw_all(reader.summary, reader.history, RANK_TIME)
    assert len(images) == 4
    assert all(png.startswith(b"\x89PNG") for png in images.values())


def test_the_same_run_gives_the_same_bytes(ended_run: RunDirectory) -> None:
    first, second = read(ended_run), read(ended_run)
    assert figures.draw_all(first.summary, first.history, RANK_TIME) == figures.draw_all(
        second.summary, second.history, RANK_TIME
    )


def test_nothing_is_drawn_of_a_run_in_which_nothing_happened() -> None:
    assert figures.draw_all(RunSummary("slaq"), History(), {}) == {}


def test_axes_are_labelled_with_units(ended_run: RunDirectory) -> None:
    reader = read(ended_run)
    drawn = (
        figures.losses_figure(reader.history),
        figures.workers_figure(reader.summary, reader.history),
        figures.groups_figure(reader.summary, reader.history),
    )
    for figure in drawn:
        assert figure is not None
        assert figure.axes[0].get_xlabel() == "time since the start of the run (s)"
    assert drawn[1] is not None and drawn[1].axes[0].get_ylabel() == "workers (ranks)"
    bars = figures.rank_time_figure(RANK_TIME)
    assert bars is not None and "(%)" in bars.axes[0].get_xlabel()


def test_the_area_of_a_job_is_what_it_held(ended_run: RunDirectory) -> None:
    reader = read(ended_run)
    figure = figures.workers_figure(reader.summary, reader.history)
    assert figure is not None
    areas = {patch.get_label(): patch.get_data() for patch in figure.axes[0].patches}
    data = areas["alpha"]
    held = sum(
        (top - bottom) * (right - left)
        for top, bottom, left, right in zip(
            data.values, data.baseline, data.edges, data.edges[1:], strict=False
        )
    )
    assert held == pytest.approx(7.0)


def test_few_jobs_have_names_and_colours_of_their_own_and_many_a_scale() -> None:
    few, many = crowd(5)[1], crowd(60)[1]
    assert len(set(figures._colours(few).values())) == 5
    assert len(set(figures._colours(many).values())) == 60
    few_figure, many_figure = figures.losses_figure(few), figures.losses_figure(many)
    assert few_figure is not None and len(few_figure.legends) == 1
    assert many_figure is not None and not many_figure.legends
    assert [axes.get_ylabel() for axes in many_figure.axes][1] == "job, by arrival"


def test_a_crowd_is_drawn_with_one_artist_and_shows_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summary, history = crowd(100)
    figure = figures.losses_figure(history)
    assert figure is not None
    (lines,) = figure.axes[0].collections
    assert len(lines.get_segments()) == 100
    assert len(figure.axes[0].lines) == 1  # the mean
    workers = figures.workers_figure(summary, history)
    assert workers is not None
    assert not workers.axes[0].patches
    (image,) = workers.axes[0].images
    pixels = image.get_array()
    # In each instant two jobs hold a worker: the group of the one before ends with its release.
    filled = (pixels[..., 3] > 0).sum(axis=0)
    segments = [job.segments for job in summary.jobs.values()]
    times, counts = worker_steps(segments, history.now)
    held = sum(
        count * (after - before)
        for row in counts
        for count, before, after in zip(row, times, times[1:], strict=False)
    )
    assert filled.mean() * history.now == pytest.approx(held, rel=0.02)
    monkeypatch.setattr(figures, "_CROWD", 1000)
    stairs = figures.workers_figure(summary, history)
    assert stairs is not None
    assert stairs.axes[0].get_ylim() == workers.axes[0].get_ylim()
    curves = figures.losses_figure(history)
    assert curves is not None
    drawn = curves.axes[0].lines[0].get_path()
    assert lines.get_segments()[0][:, 0].tolist()[-1] == drawn.vertices[-1, 0]


def test_a_long_history_of_a_crowd_is_thinned_evenly() -> None:
    points = [(float(at), 1.0 / (1 + at)) for at in range(1000)]
    thin = figures._thinned(points, 5000)
    assert 30 < len(thin) < 60
    assert (thin[0], thin[-1]) == (points[0], points[-1])
    assert figures._thinned(points, 10) == points


def test_sixty_jobs_have_a_row_each_that_is_high_enough_to_read() -> None:
    summary, history = crowd(60)
    figure = figures.groups_figure(summary, history)
    assert figure is not None
    assert len(figure.axes[0].get_yticklabels()) == 60
    inches_per_row = figure.get_size_inches()[1] / 60
    font_inches = figure.axes[0].get_yticklabels()[0].get_fontsize() / 72
    assert inches_per_row > 1.5 * font_inches


def test_names_are_not_read_as_mathematics(ended_run: RunDirectory) -> None:
    assert figures.short_name("a$b$") == r"a\$b\$"
    assert len(figures.short_name("x" * 90)) == 28


def test_without_matplotlib_the_error_names_the_extra(
    ended_run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "has_matplotlib", lambda: False)
    reader = read(ended_run)
    with pytest.raises(LaunchError, match=r"hpcslaq\[report\]"):
        figures.draw_all(reader.summary, reader.history, RANK_TIME)


def test_no_state_of_pyplot_is_touched(ended_run: RunDirectory) -> None:
    reader = read(ended_run)
    had_pyplot = "matplotlib.pyplot" in sys.modules
    figures.draw_all(reader.summary, reader.history, RANK_TIME)
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot
