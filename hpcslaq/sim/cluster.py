"""The ranks of a simulation: they carry out the coordinator's commands in virtual time.

Theory of operation. A job trains in stretches: from iteration `first` at time `since` on,
with a fixed number of workers. Nothing happens per iteration: within a stretch the time of
every iteration is known in closed form, so the cluster plans only the job's end and what was
ordered (at the next epoch boundary, or for a stop at the next iteration), and reports all
iterations completed since the last report at once when it is asked to. A stretch that was
broken off makes what was planned for it stale: `stretch` numbers tell.

Orders are only planned here, never answered at once; so the coordinator is never entered
again while it handles an event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcslaq.core import commands as cmd
from hpcslaq.core import events as ev
from hpcslaq.sim.engine import Engine
from hpcslaq.sim.jobs import FAILS, SimJob
from hpcslaq.sim.scaling import Delays, PlacedStepTime, ScalingModel, noise_factors

#: Part of an iteration by which it may be incomplete and still counts: rounding of times.
_ROUNDING = 1e-9

BoundaryOrder = cmd.Regroup | cmd.Pause | cmd.Stop


@dataclass(slots=True)
class RunningJob:
    """What the ranks of one job do."""

    truth: SimJob
    #: `work[k]` is the duration of iterations 1 to k in mean iterations; None: it is k.
    work: NDArray[np.float64] | None
    members: tuple[int, ...] = ()
    generation: int = 0
    #: The newest order for a boundary; a repeated one replaces the earlier.
    order: BoundaryOrder | None = None
    #: Number of the present stretch; plans of earlier ones are stale.
    stretch: int = 0
    is_training: bool = False
    #: Start of the stretch (s since run start), iterations completed then (whole ones, unless
    #: the job is divisible), s per mean iteration.
    since: float = 0.0
    first: float = 0
    step_s: float = 0.0
    #: Iterations in reports, and in the newest checkpoint.
    reported: int = 0
    stored: float = 0
    #: When the next iteration to be reported is complete; spares most looks at jobs.
    due_at: float = 0.0
    #: Finished stretches (since, first, last, step_s) for the exact times of all iterations.
    history: list[tuple[float, float, float, float]] = field(default_factory=list)

    def work_until(self, iteration: float) -> float:
        """Mean iterations that iterations 1 to `iteration` take."""
        if self.work is None:
            return iteration
        whole = int(iteration)
        if whole == iteration:
            return float(self.work[whole])
        part = iteration - whole
        return float(self.work[whole] * (1.0 - part) + self.work[whole + 1] * part)

    def time_of(self, iteration: float) -> float:
        """When this iteration will be complete in the present stretch (s since run start)."""
        ahead = self.work_until(iteration) - self.work_until(self.first)
        return self.since + ahead * self.step_s

    def completed(self, now: float) -> int:
        """Iterations complete at `now`."""
        if not self.is_training or now <= self.since:
            return int(self.first)
        done = (now - self.since) / self.step_s + _ROUNDING
        if self.work is None:
            count = int(self.first + done)
        else:
            done += self.work_until(self.first)
            count = int(np.searchsorted(self.work, done, side="right")) - 1
        return min(count, self.truth.num_iterations)

    def progress(self, now: float) -> float:
        """Iterations complete at `now`, with the part of the one under way if that counts."""
        done = self.completed(now)
        if not self.truth.is_divisible or done >= self.truth.num_iterations:
            return done
        begun_at, ended_at = self.time_of(max(done, self.first)), self.time_of(done + 1)
        from_part = max(self.first - done, 0.0)
        part = from_part + (1.0 - from_part) * (now - begun_at) / (ended_at - begun_at)
        # Just below the end of an iteration its loss is not there yet.
        return done + min(max(part, 0.0), 1.0 - 1e-6)

    def iteration_times(self) -> NDArray[np.float64]:
        """When each iteration was first complete: (iterations completed,) s since run start."""
        times: list[NDArray[np.float64]] = []
        known = 0
        for since, first, last, step_s in self.history:
            new = np.arange(max(int(first), known) + 1, int(last) + 1)
            work = new if self.work is None else self.work[new]
            ahead: NDArray[np.float64] = np.asarray(work - self.work_until(first), np.float64)
            times.append(since + ahead * step_s)
            known = max(known, int(last))
        return np.concatenate(times) if times else np.empty(0)


class Cluster:
    """Carries out commands and answers with events after modelled delays.

    `tell(event)` hands an event to the coordinator at the engine's present time.
    """

    def __init__(
        self,
        engine: Engine,
        tell: Callable[[ev.Event], None],
        jobs: Iterable[SimJob],
        delays: Delays,
        *,
        hosts: Mapping[int, str] | None = None,
        noise: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._delays = delays
        self._hosts = hosts or {}
        self.jobs = {job.name: RunningJob(job, _work_of(job, noise, seed)) for job in jobs}
        #: Jobs that train now, in the order in which they began to.
        self._training: dict[str, RunningJob] = {}
        self._lost: set[int] = set()
        self._carriers: Mapping[type, Callable[..., None]] = {
            cmd.Start: self._start,
            cmd.Regroup: self._order_at_boundary,
            cmd.Pause: self._order_at_boundary,
            cmd.Stop: self._order_at_boundary,
            cmd.Dismiss: self._dismiss,
        }

    def carry_out(self, order: cmd.Command) -> None:
        """Plan what the ranks do because of an order to them; others are not for the ranks."""
        carry = self._carriers.get(type(order))
        if carry is not None:
            carry(order)

    def report_progress(self) -> None:
        """Report the iterations that all jobs have completed by now."""
        now = self._engine.now
        for run in [run for run in self._training.values() if run.due_at <= now]:
            self._report(run)

    def lose(self, rank: int) -> None:
        """A rank dies now; the survivors of its group redo the iteration under way."""
        if rank in self._lost:
            return
        for run in self.jobs.values():
            if rank in run.members:
                self._lose_member(run, rank)
        self._lost.add(rank)
        self._tell(ev.RankLost(rank))

    # -- orders ------------------------------------------------------------------------

    def _start(self, order: cmd.Start) -> None:
        run = self.jobs[order.job]
        run.stretch += 1
        run.members, run.generation = order.members, order.generation
        run.first, run.reported = run.stored, int(run.stored)
        delay = self._delays.start_s(len(order.members), run.truth.load_s)
        self._later(delay, partial(self._formed, run, run.stretch, delay))

    def _order_at_boundary(self, order: BoundaryOrder) -> None:
        """Plan to carry the order out at its boundary, if the job gets so far."""
        run = self.jobs[order.job]
        run.order = order
        if not run.is_training:
            # Repeated after a loss while the group stands at its boundary.
            run.stretch += 1
            self._at_boundary(run, run.stretch, order)
            return
        if run.truth.is_divisible and not isinstance(order, cmd.Stop):
            self._later(self._delays.message_s, partial(self._at_boundary, run, run.stretch, order))
            return
        done = run.completed(self._engine.now + self._delays.message_s)
        length = 1 if isinstance(order, cmd.Stop) else run.truth.iterations_per_epoch
        boundary = (done // length + 1) * length
        if boundary < run.truth.num_iterations:
            action = partial(self._at_boundary, run, run.stretch, order)
            self._engine.plan(max(run.time_of(boundary), self._engine.now), action)

    def _at_boundary(self, run: RunningJob, stretch: int, order: BoundaryOrder) -> None:
        if stretch != run.stretch or order is not run.order:
            return
        self._report(run)
        self._break_off(run)
        run.stored = run.first
        stretch = run.stretch
        if isinstance(order, cmd.Regroup):
            delay = self._delays.regroup_s(len(order.members))
            self._release(tuple(r for r in order.leavers if r in run.members), run)
            run.members, run.generation = order.members, order.generation
            self._later(delay, partial(self._formed, run, stretch, delay))
        elif isinstance(order, cmd.Pause):
            answer = ev.JobPaused(order.job, order.generation, int(run.first))
            self._later(self._delays.checkpoint_s, partial(self._dissolve, run, stretch, answer))
        else:
            self._dissolve(run, stretch, ev.JobStopped(order.job, order.generation))

    def _dismiss(self, order: cmd.Dismiss) -> None:
        for rank in order.ranks:
            self._later(self._delays.message_s, partial(self._say_released, rank, order))

    # -- what happens ------------------------------------------------------------------

    def _formed(self, run: RunningJob, stretch: int, delay: float) -> None:
        if stretch != run.stretch:
            return
        self._train(run)
        name = run.truth.name
        self._tell(ev.GroupFormed(name, run.generation, run.members, int(run.first), delay))

    def _train(self, run: RunningJob, after: float = 0.0) -> None:
        """Begin a stretch `after` seconds from now and plan its end."""
        run.stretch += 1
        run.is_training = True
        run.since = self._engine.now + after
        run.step_s = self._step_s(run)
        self._training[run.truth.name] = run
        self._note_due(run)
        self._engine.plan(
            run.time_of(run.truth.num_iterations), partial(self._finish, run, run.stretch)
        )

    def _step_s(self, run: RunningJob) -> float:
        step_time = run.truth.step_time
        # The type first: asking a protocol takes microseconds.
        if type(step_time) is ScalingModel or not isinstance(step_time, PlacedStepTime):
            return step_time.seconds(run.truth.spec.workers_among(len(run.members)))
        on_host = Counter(self._hosts.get(rank, "") for rank in run.members)
        return step_time.seconds_on(tuple(sorted(on_host.values(), reverse=True)))

    def _break_off(self, run: RunningJob, *, is_lossless: bool = True) -> None:
        """End the stretch after what is complete; only whole iterations if something is lost."""
        if run.is_training:
            now = self._engine.now
            done: float = run.progress(now) if is_lossless else run.completed(now)
            run.history.append((run.since, run.first, done, run.step_s))
            run.first = done
            run.is_training = False
            del self._training[run.truth.name]
        run.stretch += 1

    def _finish(self, run: RunningJob, stretch: int) -> None:
        if stretch != run.stretch:
            return
        self._report(run)
        self._break_off(run)
        truth = run.truth
        if truth.reason == FAILS:
            message = f"iteration {truth.num_iterations}: as planned"
            failure = ev.JobFailed(truth.name, run.generation, run.members[0], message)
            self._dissolve(run, run.stretch, failure)
            return
        answer = ev.JobFinished(
            truth.name,
            run.generation,
            iterations=int(run.first),
            epochs=int(run.first) // truth.iterations_per_epoch,
            final_loss=truth.final_loss,
            loss_digest="",
            model_digest="",
            reason=truth.reason,
        )
        if truth.finish_s == 0.0:
            self._dissolve(run, run.stretch, answer)
            return
        leader, *others = run.members
        run.members = (leader,)
        self._release(tuple(others), run)
        self._later(truth.finish_s, partial(self._dissolve, run, run.stretch, answer))
        self._tell(ev.GroupDissolved(truth.name, run.generation))

    def _dissolve(self, run: RunningJob, stretch: int, answer: ev.Event) -> None:
        """Tell why the group ends, and let its ranks go."""
        if stretch != run.stretch:
            return
        members, run.members = run.members, ()
        self._release(members, run)
        self._tell(answer)

    def _release(self, ranks: tuple[int, ...], run: RunningJob) -> None:
        if ranks:
            left = cmd.Dismiss(run.truth.name, run.generation, ranks)
            self._later(self._delays.message_s, partial(self._say_all_released, left))

    def _say_all_released(self, left: cmd.Dismiss) -> None:
        for rank in left.ranks:
            self._say_released(rank, left)

    def _say_released(self, rank: int, left: cmd.Dismiss) -> None:
        if rank not in self._lost:
            self._tell(ev.RankReleased(rank, left.job, left.generation))

    def _lose_member(self, run: RunningJob, rank: int) -> None:
        was_training = run.is_training
        self._report(run)
        self._break_off(run, is_lossless=False)
        run.members = tuple(member for member in run.members if member != rank)
        if not run.members:
            per_epoch = run.truth.iterations_per_epoch
            run.stored = max(run.stored, run.first // per_epoch * per_epoch)
        elif was_training:
            self._train(run, after=self._delays.repair_s)

    # -- helpers -----------------------------------------------------------------------

    def _report(self, run: RunningJob) -> None:
        """Report the iterations that are complete and were not reported."""
        done = min(run.completed(self._engine.now), run.truth.num_losses)
        if done > run.reported and run.is_training:
            truth, first = run.truth, run.reported
            run.reported = done
            self._note_due(run)
            self._tell(
                ev.ProgressReported(
                    truth.name,
                    run.generation,
                    first_iteration=first + 1,
                    losses=_plain(truth.losses[first:done]),
                    epochs=done // truth.iterations_per_epoch,
                    seconds=(run.work_until(done) - run.work_until(first)) * run.step_s,
                    num_workers=len(run.members),
                )
            )

    def _note_due(self, run: RunningJob) -> None:
        following = min(run.reported + 1, run.truth.num_iterations)
        run.due_at = run.time_of(following) - _ROUNDING * run.step_s

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        self._engine.plan(self._engine.now + delay, action)


def _plain(losses: Sequence[float] | NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(losses.tolist() if isinstance(losses, np.ndarray) else map(float, losses))


def _work_of(job: SimJob, noise: float, seed: int) -> NDArray[np.float64] | None:
    if noise == 0.0 and job.efforts is None:
        return None
    factors = np.ones(job.num_iterations)
    if noise > 0.0:
        factors = noise_factors(seed, job.name, job.num_iterations, noise)
    if job.efforts is not None:
        factors = factors * job.efforts[: job.num_iterations]
    return np.concatenate([[0.0], np.cumsum(factors)])
