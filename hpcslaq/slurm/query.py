"""What Slurm says of a job: one question for all jobs, an answer within seconds, no raise.

Slurm's commands may hang, fail, or not know the job any more ("Invalid job id" minutes
after its end): the state is then None and `problem` says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpcslaq.slurm.commands import ANSWER_S, Answer, Question, ask

_FORMAT = "%i|%T|%L|%R"
_TIME = re.compile(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)")
_PLUGIN = re.compile(r"(none|cray_shasta|pmi2|pmix(_v\d+)?)")
_JOB_ID = re.compile(r"\d+(_\d+)?")
#: States after which a job runs no more.
_ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
#: What is said of a job that Slurm has forgotten.
FORGOTTEN = "Slurm does not know it any more: it ended"


@dataclass(frozen=True, slots=True)
class QueueState:
    """How a job stands in Slurm's queue."""

    job_id: str
    #: Slurm's word, for example "RUNNING" or "PENDING"; None where it does not say.
    state: str | None = None
    #: Seconds until its time limit; None where there is none or it does not run.
    time_left_s: float | None = None
    #: Its nodes while it runs, in brackets why it does not.
    where: str = ""
    #: Why the state is not known; empty where it is.
    problem: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the job is known to run no more."""
        return self.state in _ENDED or self.problem == FORGOTTEN


def job_states(job_ids: Iterable[str], timeout_s: float = ANSWER_S) -> dict[str, QueueState]:
    """How the jobs stand, by id (an array's id gives the state of one of its tasks)."""
    ids = list(job_ids)
    if not ids:
        return {}
    answer = ask(squeue(ids), timeout_s)
    known = {state.job_id.partition("_")[0]: state for state in parse_states(answer.text)}
    states = {}
    for job_id in ids:
        problem = answer.problem
        if not problem or "Invalid job id" in problem:
            problem = FORGOTTEN
        state = known.get(job_id.partition("_")[0])
        states[job_id] = QueueState(job_id, problem=problem) if state is None else state
    return states


def time_left_question(job_id: str) -> Question:
    """Ask for a job's state without waiting; `time_left` reads the answer."""
    return Question(squeue([job_id]))


def time_left(answer: Answer) -> float | None:
    """Seconds until the job's time limit; None where the answer does not say."""
    states = parse_states(answer.text)
    return states[0].time_left_s if states else None


def mpi_plugins() -> frozenset[str]:
    """Names that `srun --mpi=` takes here; none where Slurm does not say."""
    # The list goes to standard error up to Slurm 22.05.
    answer = ask(["sh", "-c", "srun --mpi=list 2>&1"])
    return frozenset(word for word in answer.text.split() if _PLUGIN.fullmatch(word))


def squeue(job_ids: Iterable[str]) -> list[str]:
    """The command line of the question. Raises ValueError where an id is none."""
    ids = list(job_ids)
    for job_id in ids:
        if not _JOB_ID.fullmatch(job_id):
            raise ValueError(f"{job_id!r} is not a Slurm job id")
    # Of all states: a job that ended is still known for some minutes.
    line = ["squeue", "--noheader", "--states=all"]
    return [*line, f"--jobs={','.join(ids)}", f"--format={_FORMAT}"]


def parse_states(text: str) -> list[QueueState]:
    """The states that `squeue` printed; lines of another form (warnings) are left out."""
    states = []
    for line in text.splitlines():
        parts = line.strip().split("|", 3)
        if len(parts) == 4 and _JOB_ID.match(parts[0]):
            job_id, state, left, where = parts
            states.append(QueueState(job_id, state, parse_time(left), where))
    return states


def parse_time(text: str) -> float | None:
    """Seconds of Slurm's "D-HH:MM:SS", "MM:SS" and the like; None for "UNLIMITED" and such."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
