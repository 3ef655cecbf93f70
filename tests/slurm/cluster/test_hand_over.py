"""A run that is interrupted in each of Slurm's ways ends with the digests of one that is not.

Slurm looks at time limits every 30 s only, so the tests that wait for one are `long`; what
`scancel` sends is the same.
"""

from __future__ import annotations

import pytest

from hpcslaq.core import events as ev

pytestmark = [pytest.mark.slurm, pytest.mark.launch]

FORMS = ["openmpi-pmix", "mpich-pmi2", "mpirun", "mpiexec"]


@pytest.mark.parametrize("form", FORMS)
def test_the_early_warning_makes_it_checkpoint_and_come_back(cluster, undisturbed, form):
    job = cluster.submit_slow(form, f"warned-{form}", "--requeue", "1")
    cluster.call("scancel", "--batch", "--signal=USR1", job.id)
    job.wait(lambda info: info.restarts == 1)
    cluster.hurry()
    assert job.stop_reasons() == ["SIGUSR1"]
    cluster.hurry()
    info = job.wait_end()
    assert (info.state, info.exit_code) == ("COMPLETED", "0:0"), job.output()
    job.check_went_on(undisturbed("jobs.toml"))


@pytest.mark.parametrize("form", ["openmpi-pmix", "mpich-pmi2"])
def test_a_warning_that_comes_while_the_ranks_start_kills_none_and_is_not_lost(
    cluster, undisturbed, form
):
    cluster.slow_down()
    job = cluster.submit(form, f"early-{form}", "--requeue", "1")
    # From here on the script takes signals; the ranks do not yet.
    job.wait(lambda info: "hpcslaq: job" in job.output())
    cluster.call("scancel", "--batch", "--signal=USR1", job.id)
    job.wait(lambda info: info.restarts == 1)
    assert job.stop_reasons() == ["SIGUSR1"]
    assert job.wait_end().state == "COMPLETED", job.output()
    result = job.result()
    assert result is not None and result["exit_code"] == 0
    assert job.digests() == undisturbed("jobs.toml")


@pytest.mark.parametrize(
    ("form", "has_time", "again", "nodes"),
    [
        # srun and hydra leave the ranks Slurm's KillWait: all jobs are in checkpoints.
        ("openmpi-pmix", True, "mpich-pmi2", 3),
        ("mpiexec", True, "openmpi-pmix", 2),
        # Open MPI's mpirun a quarter of a second: what did not fit is in older checkpoints.
        ("mpirun", False, "mpiexec", 1),
    ],
)
def test_a_cancelled_run_goes_on_where_it_was(cluster, undisturbed, form, has_time, again, nodes):
    job = cluster.submit_slow(form, f"cancelled-{form}", "--requeue", "1")
    cluster.call("scancel", job.id)
    info = job.wait(lambda info: info.state in ("CANCELLED", "COMPLETED") or info.restarts)
    assert (info.state, info.restarts) == ("CANCELLED", 0)
    cluster.wait_until_gone(job)
    if has_time:
        assert job.result()["exit_code"] == 75
        assert len(job.events(ev.JobPaused)) >= 1
    cluster.hurry()
    later = cluster.submit(again, f"cancelled-{form}", nodes=nodes)
    assert later.wait_end().state == "COMPLETED", later.output()
    later.check_went_on(undisturbed("jobs.toml"))
    later.check_nothing_lost()


def test_a_requeued_run_comes_back_by_itself(cluster, undisturbed):
    job = cluster.submit_slow("openmpi-pmix", "requeued")
    cluster.call("scontrol", "requeue", job.id)
    job.wait(lambda info: info.restarts == 1)
    cluster.hurry()
    assert job.wait_end().state == "COMPLETED", job.output()
    job.check_went_on(undisturbed("jobs.toml"))
    job.check_nothing_lost()


@pytest.mark.parametrize(
    ("partition", "warn", "reasons"),
    [
        ("low", "0", {"SIGTERM"}),  # no grace, no warning
        # No grace, but this Slurm sends the warning too, a moment before it ends the job.
        ("low", "120s", {"SIGTERM", "SIGUSR1"}),
        ("gentle", "120s", {"SIGUSR1"}),  # the warning, and time to act on it
    ],
)
def test_a_preempted_run_comes_back_when_there_is_room(
    cluster, undisturbed, partition, warn, reasons
):
    # A run that the warning ends before Slurm does has to requeue itself.
    options = ("--partition", partition, "--warn", warn, "--requeue", "1")
    job = cluster.submit_slow("openmpi-pmix", f"preempted-{partition}-{warn}", *options)
    urgent = cluster.call("srun", "-p", "high", "-N4", "--ntasks-per-node=8", "sleep", "1")
    assert urgent.returncode == 0, urgent.stderr
    (reason,) = job.stop_reasons()
    assert reason in reasons
    cluster.hurry()
    assert job.wait_end().state == "COMPLETED", job.output()
    job.check_went_on(undisturbed("jobs.toml"))
    job.check_nothing_lost()


def test_requeues_are_capped_and_the_kept_script_goes_on_by_hand(cluster, undisturbed):
    job = cluster.submit_slow("mpich-pmi2", "capped", "--requeue", "1")
    cluster.call("scancel", "--batch", "--signal=USR1", job.id)
    job.wait(lambda info: info.restarts == 1)
    job.wait_until_busy()
    cluster.call("scancel", "--batch", "--signal=USR1", job.id)
    info = job.wait_end()
    assert (info.state, info.exit_code, info.restarts) == ("FAILED", "75:0", 1)
    assert job.result()["exit_code"] == 75
    assert "not finished; to go on, submit this script again" in job.output()
    cluster.hurry()
    done = cluster.call("sbatch", "--parsable", str(job.path / "batch.sh"))
    again = cluster.run("capped", done.stdout.strip())
    assert again.wait_end().state == "COMPLETED", again.output()
    again.check_went_on(undisturbed("jobs.toml"), starts=3)
    again.check_nothing_lost()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_runs_that_meet_their_time_limit_go_on(cluster, undisturbed):
    """All at once, because Slurm looks at time limits every 30 s only."""

    def start(form, out, *options):
        return cluster.submit_slow(form, out, "--time", "1", *options, pass_s=0.5)

    # Slurm's own warning; the run does not look at the time itself.
    signal = "--sbatch=--signal=B:USR1@20"
    warned = start("openmpi-pmix", "limit-warned", "--warn", "0", "--requeue", "5", signal)
    # The known end of the allocation; Slurm's warning is replaced by a signal that is ignored.
    signal = "--sbatch=--signal=B:URG@1"
    known = start("openmpi-pmix", "limit-known", "--warn", "20", "--requeue", "5", signal)
    # Neither.
    plain = {form: start(form, f"limit-{form}", "--warn", "0") for form in ("mpiexec", "mpirun")}
    for job in (warned, known):
        job.wait(lambda info: info.restarts >= 1, timeout_s=120)
    assert warned.stop_reasons()[0] == "SIGUSR1"
    assert "the allocation ends in" in known.stop_reasons()[0]
    for job in plain.values():
        assert job.wait_end(timeout_s=150).state == "TIMEOUT"
        cluster.wait_until_gone(job)
    cluster.hurry()
    again = [cluster.submit("openmpi-pmix", f"limit-{form}", nodes=3) for form in plain]
    for job in (warned, known, *again):
        # One more start may be under way, or, where a node was too busy, lost and repeated.
        assert job.wait_end(timeout_s=180).state == "COMPLETED", job.output()
        job.check_went_on(undisturbed("jobs.toml"), starts=len(job.hosts()))
        job.check_nothing_lost()
