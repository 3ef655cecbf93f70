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
    assert job.stop_reasons() == ["SIGUSR1"]
    cluster.hurry()
    info = job.wait_end()
    assert (info.state, info.exit_code) == ("COMPLETED", "0:0"), job.output()
    job.check_went_on(undisturbed("jobs.toml"))


def test_a_cancelled_run_is_consistent_and_goes_on_on_more_nodes(cluster, undisturbed):
    job = cluster.submit_slow("openmpi-pmix", "cancelled", "--requeue", "1")
    cluster.call("scancel", job.id)
    info = job.wait(lambda info: info.state in ("CANCELLED", "COMPLETED") or info.restarts)
    assert (info.state, info.restarts) == ("CANCELLED", 0)
    # srun leaves the ranks Slurm's KillWait: all jobs are in checkpoints.
    job.wait_result()
    assert job.result()["exit_code"] == 75
    assert len(job.events(ev.JobPaused)) >= 1
    cluster.hurry()
    again = cluster.submit("mpich-pmi2", "cancelled", nodes=3)
    assert again.wait_end().state == "COMPLETED", job.output()
    again.check_went_on(undisturbed("jobs.toml"))
    again.check_nothing_lost()


def test_a_run_cancelled_under_mpirun_goes_on_on_one_node(cluster, undisturbed):
    job = cluster.submit_slow("mpirun", "cancelled-mpirun")
    cluster.call("scancel", job.id)
    # A quarter of a second is all that mpirun leaves: what did not fit is in older checkpoints.
    assert job.wait_end().state == "CANCELLED"
    cluster.wait_until_gone(job)
    cluster.hurry()
    again = cluster.submit("mpiexec", "cancelled-mpirun", nodes=1)
    assert again.wait_end().state == "COMPLETED", again.output()
    again.check_went_on(undisturbed("jobs.toml"))
    again.check_nothing_lost()


def test_a_requeued_run_comes_back_by_itself(cluster, undisturbed):
    job = cluster.submit_slow("openmpi-pmix", "requeued")
    cluster.call("scontrol", "requeue", job.id)
    job.wait(lambda info: info.restarts == 1)
    cluster.hurry()
    assert job.wait_end().state == "COMPLETED", job.output()
    job.check_went_on(undisturbed("jobs.toml"))
    job.check_nothing_lost()


@pytest.mark.parametrize(
    ("partition", "reason"),
    [
        ("low", "SIGTERM"),  # no grace
        ("gentle", "SIGUSR1"),  # the early warning first
    ],
)
def test_a_preempted_run_comes_back_when_there_is_room(cluster, undisturbed, partition, reason):
    # A run that the warning ends before Slurm does has to requeue itself.
    options = ("--partition", partition, "--requeue", "1")
    job = cluster.submit_slow("openmpi-pmix", f"preempted-{partition}", *options)
    urgent = cluster.call("srun", "-p", "high", "-N4", "--ntasks-per-node=8", "sleep", "1")
    assert urgent.returncode == 0, urgent.stderr
    assert job.stop_reasons() == [reason]
    cluster.hurry()
    assert job.wait_end().state == "COMPLETED", job.output()
    job.check_went_on(undisturbed("jobs.toml"))
    job.check_nothing_lost()


def test_the_restarts_are_capped(cluster):
    job = cluster.submit_slow("mpich-pmi2", "capped")
    cluster.call("scancel", "--batch", "--signal=USR1", job.id)
    info = job.wait_end()
    assert (info.state, info.exit_code, info.restarts) == ("FAILED", "75:0", 0)
    assert job.result()["exit_code"] == 75
    assert "not finished; to go on, submit this script again" in job.output()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_known_end_of_the_allocation_is_enough(cluster, undisturbed):
    job = cluster.submit_slow(
        *("openmpi-pmix", "known-end", "--time", "1", "--warn", "20", "--requeue", "5"),
        # In place of the warning a signal that is ignored.
        "--sbatch=--signal=B:URG@1",
    )
    job.wait(lambda info: info.restarts == 1, timeout_s=120)
    assert "the allocation ends in" in job.stop_reasons()[0]
    cluster.hurry()
    assert job.wait_end().state == "COMPLETED", job.output()
    job.check_went_on(undisturbed("jobs.toml"))
    job.check_nothing_lost()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["openmpi-pmix", "mpirun"])
def test_a_run_that_meets_its_time_limit_unwarned_goes_on(cluster, undisturbed, form):
    job = cluster.submit_slow(form, f"limit-{form}", "--time", "1", "--warn", "0")
    assert job.wait_end(timeout_s=150).state == "TIMEOUT"
    cluster.wait_until_gone(job)
    cluster.hurry()
    again = cluster.submit("mpich-pmi2", f"limit-{form}", nodes=3)
    assert again.wait_end().state == "COMPLETED", again.output()
    again.check_went_on(undisturbed("jobs.toml"))
    again.check_nothing_lost()
