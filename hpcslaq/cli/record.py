"""`hpcslaq record`: run the jobs of a job file alone and store their curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from hpcslaq.cli.live import preparing
from hpcslaq.cli.output import emit_json, json_option, reports_errors
from hpcslaq.cli.prepare import Progress, prepare_data, read_checked
from hpcslaq.data.store import open_dataset
from hpcslaq.errors import NotFoundError
from hpcslaq.record.files import write_atomic
from hpcslaq.record.times import parse_duration
from hpcslaq.sim.curves import format_curve
from hpcslaq.sim.recorder import Limits, record_job


def _duration(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("record")
@click.argument("job_file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory of curves.")
@click.option("--job", "names", multiple=True, help="Only this job; may be given several times.")
@click.option("--iterations", type=click.IntRange(1), help="Most iterations of a job.")
@click.option("--cpu", "cpu_s", callback=_duration, help="Most CPU time of a job, as 90s or 5m.")
@click.option("--again", is_flag=True, help="Record also what is there already.")
@json_option
@reports_errors
def command(
    job_file: Path,
    out: Path,
    names: tuple[str, ...],
    iterations: int | None,
    cpu_s: float | None,
    again: bool,
    as_json: bool,
) -> None:
    """Train each job of JOB_FILE alone on one worker; write OUT/JOB.csv.

    Each file holds loss, CPU and wall seconds of every iteration: what `hpcslaq simulate`
    takes as `curves`. Curves that are there already are kept.
    """
    checked = read_checked(job_file)
    jobs = [job for job in checked.jobs if not names or job.name in names]
    missing = set(names) - {job.name for job in jobs}
    if missing:
        raise NotFoundError(f"{job_file}: has no job {sorted(missing)[0]!r}")
    limits = Limits(iterations, cpu_s)
    written = []
    with preparing(as_json) as progress:
        paths = prepare_data(job_file, checked, progress)
        out.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            path = out / f"{job.name}.csv"
            if path.exists() and not again:
                continue
            data = open_dataset(Path(paths[job.data]))
            show = _shower(progress, job.name, iterations or job.max_epochs)
            curve = record_job(job, data, limits, on_iteration=show)
            write_atomic(path, format_curve(curve).encode())
            cpu = 0.0 if curve.cpu_s is None else float(curve.cpu_s.sum())
            written.append(
                {
                    "job": job.name,
                    "file": str(path),
                    "iterations": int(curve.losses.size),
                    "first_loss": float(curve.losses[0]),
                    "last_loss": float(curve.losses[-1]),
                    "cpu_s": cpu,
                }
            )
            if not as_json:
                click.echo(f"{path}: {curve.losses.size} iterations, {cpu:.1f} s of CPU")
    if as_json:
        emit_json(written)


def _shower(progress: Progress, name: str, most: int) -> Callable[[int, float], None]:
    """Tells the progress of one job by its iterations."""
    return lambda number, loss: progress(f"job {name}", min(number / most, 1.0))
