"""Questions to a Slurm that answers, hangs, fails, or has forgotten the job."""

from __future__ import annotations

import time

import pytest

from hpcslaq.slurm.commands import Question, ask
from hpcslaq.slurm.query import (
    FORGOTTEN,
    QueueState,
    job_states,
    mpi_plugins,
    parse_states,
    parse_time,
    squeue,
)


def test_all_jobs_are_asked_for_in_one_question(pretend):
    pretend(
        "squeue",
        'echo "7|RUNNING|1-00:00:10|n[1-2]"; echo "8|PENDING|1:00|(Priority)"',
    )
    states = job_states(["7", "8", "9"])
    assert states["7"] == QueueState("7", "RUNNING", 86410.0, "n[1-2]")
    assert states["8"] == QueueState("8", "PENDING", 60.0, "(Priority)")
    assert states["9"] == QueueState("9", problem=FORGOTTEN)
    assert "--jobs=7,8" in squeue(["7", "8"])


def test_an_array_is_known_by_its_first_number(pretend):
    pretend("squeue", 'echo "7_3|RUNNING|1:00|n1"')
    assert job_states(["7"])["7"].state == "RUNNING"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", FORGOTTEN),
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
            "squeue: slurm_load_jobs error: Unable to contact slurm controller",
        ),
        ("exit 3", "squeue: exit code 3"),
        ("echo warning: something; echo '|||'", FORGOTTEN),
        ("kill -9 $$", "squeue: exit code -9"),
    ],
)
def test_a_failure_is_a_problem_and_no_error(pretend, script, problem):
    pretend("squeue", script)
    assert job_states(["7"])["7"] == QueueState("7", problem=problem)


def test_a_command_that_hangs_is_killed_with_its_children(pretend, tmp_path):
    pretend("squeue", f"sleep 60 & echo $! >{tmp_path}/child; wait")
    begin = time.monotonic()
    state = job_states(["7"], timeout_s=0.5)["7"]
    assert state.problem == "squeue did not answer within 0.5 s"
    assert time.monotonic() - begin < 20
    child = int((tmp_path / "child").read_text())
    # Killed is not gone yet: it ends, or becomes a zombie that nobody has collected.
    while state_of(child) not in ("", "Z"):
        assert time.monotonic() - begin < 20
        time.sleep(0.01)


def state_of(process: int) -> str:
    """The state letter of a process; empty where there is none."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_child_that_keeps_the_pipe_open_does_not_delay_the_answer(pretend):
    pretend("squeue", "sleep 60 & echo $! >&2; echo '7|RUNNING|1:00|n1'")
    begin = time.monotonic()
    assert job_states(["7"])["7"].state == "RUNNING"
    assert time.monotonic() - begin < 20


def test_without_slurm_the_problem_says_so(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert job_states(["7"])["7"].problem == "squeue is not here (not in PATH)"
    assert ask(["sbatch"]).problem == "sbatch is not here (not in PATH)"


@pytest.mark.parametrize(
    ("state", "is_over"),
    [
        (QueueState("7", "RUNNING"), False),
        (QueueState("7", "COMPLETING"), False),
        (QueueState("7", "FAILED"), True),
        (QueueState("7", problem=FORGOTTEN), True),
        (QueueState("7", problem="squeue did not answer within 5 s"), False),
    ],
)
def test_a_job_is_over_only_if_slurm_says_so(state, is_over):
    assert state.is_over is is_over


def test_no_job_asks_nothing(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert job_states([]) == {}


def test_a_question_is_polled_without_waiting(pretend):
    pretend("squeue", "sleep 0.3; echo hello")
    question = Question(["squeue"])
    assert question.poll() is None
    assert question.wait().text == "hello\n"


@pytest.mark.parametrize("job_id", ["", "7;id", "7,8", "all", "-1"])
def test_what_is_no_job_id_never_reaches_the_command_line(job_id):
    with pytest.raises(ValueError, match="not a Slurm job id"):
        squeue([job_id])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:05", 5),
        ("59:59", 3599),
        ("1:00:00", 3600),
        ("2-00:00:00", 172800),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("NOT_SET", None),
        ("", None),
        ("-1:00", None),
    ],
)
def test_the_time_left_is_read_as_slurm_writes_it(text, seconds):
    assert parse_time(text) == seconds


def test_lines_that_are_no_states_are_left_out():
    assert (
        parse_states("squeue: warning: x|y|z|w\n\n7|RUNNING|1:00|n1 | n2\n")[0].where == "n1 | n2"
    )


def test_the_plugins_of_srun_are_found_in_its_prose(pretend):
    pretend(
        "srun",
        "echo 'MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix' >&2;"
        "echo 'specific pmix plugin versions available: pmix_v4' >&2",
    )
    assert mpi_plugins() == {"none", "pmi2", "pmix", "pmix_v4"}
