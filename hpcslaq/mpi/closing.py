"""The end of a group as its leader sees it: evaluate, write the model or a checkpoint, say so."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.errors import CheckpointError, TrainingError
from hpcslaq.mpi.channel import Channel
from hpcslaq.mpi.entry import failure_of
from hpcslaq.mpi.fence import Fence
from hpcslaq.mpi.leader import Leader
from hpcslaq.mpi.messages import TAG_EVENT
from hpcslaq.mpi.seat import MODEL_ERRORS, Outcome, Seat, Stretch, snapshot_of, story_of
from hpcslaq.record.modelfile import CENTER, SCALE, ModelInfo, SavedModel, write_model
from hpcslaq.record.rundir import RunDirectory, software_versions
from hpcslaq.train.state import TrainState
from hpcslaq.train.trainer import StepReport, Trainer, one_line

log = logging.getLogger(__name__)


def close_job(
    channel: Channel,
    run: RunDirectory,
    fence: Fence,
    seat: Seat,
    stretch: Stretch,
    guard: AbstractContextManager[object],
) -> None:
    """The leader's last duties: the model or the checkpoint on disk, then the news.

    `guard` : entered around calls of user code.
    """
    leader = seat.leader
    assert leader is not None
    trainer, outcome, report = stretch.trainer, stretch.outcome, stretch.report
    assert trainer is not None
    name, generation = seat.spec.name, seat.generation
    message: ev.Event | None = None
    if outcome is Outcome.FINISHED:
        try:
            message = _finish(run, fence, seat, trainer, report, guard)
        except MODEL_ERRORS as error:  # of user code or the disk: the job's failure
            message = ev.JobFailed(name, generation, channel.rank, *story_of(error))
    elif outcome is Outcome.FAILED:
        failure = report.failure
        assert failure is not None
        rank = seat.members[failure.member]
        message = ev.JobFailed(name, generation, rank, failure.message, failure.details)
    elif outcome is Outcome.STOPPED and leader.refusal is not None:
        refusal = leader.refusal
        message = failure_of(name, refusal)
    elif outcome is Outcome.STOPPED:
        message = ev.JobStopped(name, generation)
    elif isinstance(stretch.order, cmd.Pause):
        message = _pause(channel, seat, leader, trainer.state)
    leader.checkpoints.close()
    leader.send_results()
    if message is not None:
        channel.send(0, TAG_EVENT, message)


def _pause(channel: Channel, seat: Seat, leader: Leader, state: TrainState) -> ev.Event:
    """Write the state, then give up the group.

    Where it cannot be written (disk full), the earlier checkpoints still stand: the job
    waits and will go on from the newest of them. To fail would lose it for good.
    """
    name, generation = seat.spec.name, seat.generation
    try:
        written = leader.checkpoints.write_now(snapshot_of(seat, state))
    except (CheckpointError, OSError, MemoryError) as error:
        kept = leader.checkpoints.newest
        log.warning(
            "%s: paused after iteration %d, but will go on from %d: %s",
            name,
            state.iterations,
            kept,
            error,
        )
        return ev.JobPaused(name, generation, kept)
    channel.send(0, TAG_EVENT, written)
    return ev.JobPaused(name, generation, state.iterations)


def _finish(
    run: RunDirectory,
    fence: Fence,
    seat: Seat,
    trainer: Trainer,
    report: StepReport,
    guard: AbstractContextManager[object],
) -> ev.JobFinished:
    """Evaluate the model, write it, and say so."""
    state, model = trainer.state, seat.model
    assert report.stop is not None
    begin = time.perf_counter()
    with guard:
        metrics = _evaluate(seat, state)
    seat.usage["compute"] += time.perf_counter() - begin
    finished = ev.JobFinished(
        seat.spec.name,
        seat.generation,
        state.iterations,
        state.epochs,
        float(state.last_loss if state.last_loss is not None else float("nan")),
        state.loss_digest(),
        state.model_digest(model),
        report.stop.value,
        metrics,
    )
    info = ModelInfo(
        job=seat.spec.name,
        model=seat.spec.model,
        options=seat.spec.options,
        data={"name": seat.data.name, "num_features": seat.data.num_features},
        labels=seat.data.class_labels or None,
        digests={
            "loss_digest": finished.loss_digest,
            "model_digest": finished.model_digest,
        },
        metrics=finished.metrics,
        iterations=state.iterations,
        epochs=state.epochs,
        final_loss=finished.final_loss,
        versions=software_versions(),
    )
    arrays = dict(state.arrays)
    if seat.data.center is not None and seat.data.scale is not None:
        arrays |= {CENTER: seat.data.center, SCALE: seat.data.scale}
    fence.check()
    write_model(run.model_file(seat.spec.name), SavedModel(info, arrays))
    return finished


def _evaluate(seat: Seat, state: TrainState) -> dict[str, float]:
    """The measures on held-out rows. Raises TrainingError, from whatever user code raised."""
    holdout = seat.data.holdout()
    if holdout is None:
        return {}
    try:
        found = seat.model.evaluate(state.arrays, holdout)
        return {str(key): float(value) for key, value in found.items()}
    except MODEL_ERRORS as error:
        raise TrainingError(f"evaluate: {one_line(error)}") from error
