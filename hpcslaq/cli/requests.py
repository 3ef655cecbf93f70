"""`hpcslaq submit|cancel|set-weight|close`: requests to a run, by files in its inbox.

They work on any machine that sees the run directory, start nothing that stays, and wait a
few seconds at most for the run to take the request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from hpcslaq.cli.live import preparing
from hpcslaq.cli.output import emit_json, json_option, reports_errors
from hpcslaq.cli.prepare import prepare_data, read_checked
from hpcslaq.record.inbox import (
    CancelRequest,
    CloseRequest,
    Inbox,
    Request,
    RequestError,
    SubmitRequest,
    WeightRequest,
)
from hpcslaq.record.rundir import RunDirectory

#: How long a command waits for the run to take its requests, s; the run looks twice a second.
_WAIT_S = 4.0
_LOOK_S = 0.1

run_argument = click.argument("run", type=click.Path(path_type=Path))


@click.command("submit")
@run_argument
@click.argument("job_file", type=click.Path(path_type=Path))
@json_option
@reports_errors
def submit_command(run: Path, job_file: Path, as_json: bool) -> int:
    """Give the jobs of JOB_FILE to the run in directory RUN; they arrive at once.

    The data are prepared here. Of the [run] table only the seed counts.
    """
    directory = _open_unfinished(run)
    checked = read_checked(job_file)
    with preparing(as_json) as progress:
        paths = prepare_data(job_file, checked, progress)
    requests = [SubmitRequest(spec, paths[spec.data]) for spec in checked.jobs]
    return _hand_in(directory, requests, [spec.name for spec in checked.jobs], as_json)


@click.command("cancel")
@run_argument
@click.argument("job")
@click.option("--reason", default="", help="Shown in the report.")
@json_option
@reports_errors
def cancel_command(run: Path, job: str, reason: str, as_json: bool) -> int:
    """End job JOB of the run in directory RUN without a result."""
    return _hand_in(_open_unfinished(run), [CancelRequest(job, reason[:500])], [job], as_json)


@click.command("set-weight")
@run_argument
@click.argument("job")
@click.argument("weight", type=float)
@json_option
@reports_errors
def set_weight_command(run: Path, job: str, weight: float, as_json: bool) -> int:
    """Give job JOB of the run in directory RUN another weight (> 0)."""
    return _hand_in(_open_unfinished(run), [WeightRequest(job, weight)], [job], as_json)


@click.command("close")
@run_argument
@json_option
@reports_errors
def close_command(run: Path, as_json: bool) -> int:
    """Tell a serving run that no more jobs will come: it ends when the present ones have."""
    return _hand_in(_open_unfinished(run), [CloseRequest()], ["close"], as_json)


def _open_unfinished(path: Path) -> RunDirectory:
    run = RunDirectory.open_existing(path)
    result = run.read_result()
    if result is not None and result.get("exit_code") in (0, 1):
        raise RequestError(f"{path}: the run has ended")
    return run


def _hand_in(
    run: RunDirectory, requests: Sequence[Request], labels: list[str], as_json: bool
) -> int:
    """Send the requests, wait a little, and say what became of them."""
    inbox = Inbox(run.inbox)
    names = [inbox.send(request) for request in requests]
    until = time.monotonic() + _WAIT_S
    answers = [inbox.answer(name) for name in names]
    while None in answers and time.monotonic() < until:
        time.sleep(_LOOK_S)
        answers = [inbox.answer(name) for name in names]
    outcomes = dict(zip(labels, map(_outcome, answers), strict=True))
    refused = [answer for answer in answers if answer]
    if refused and not as_json:
        raise RequestError("; ".join(refused))
    if as_json:
        emit_json({"requests": outcomes, "reasons": refused})
        return RequestError.exit_code if refused else 0
    for label, outcome in outcomes.items():
        click.echo(f"{label}: {outcome}")
    return 0


def _outcome(answer: str | None) -> str:
    if answer is None:
        return "handed in; the run takes it when it is on"
    return "refused" if answer else "taken"
