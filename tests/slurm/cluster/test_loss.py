"""Lost nodes and other ends that look like success: nothing is lost, nothing is believed."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.launch]


@pytest.fixture(autouse=True)
def all_nodes_back(cluster):
    yield
    cluster.restore()


def test_mpirun_that_says_success_after_a_lost_node_is_not_believed(cluster, undisturbed):
    job = cluster.submit_slow("mpirun", "lost-node", "--requeue", "5")
    # Not the node of the batch script, which is the first.
    cluster.crash(job.hosts()[-1][4])
    job.wait(lambda info: info.restarts >= 1)
    assert "hpcslaq: no result" in job.output()
    cluster.restore()
    cluster.hurry()
    assert job.wait_end().state == "COMPLETED", job.output()
    job.check_went_on(undisturbed("jobs.toml"), starts=len(job.hosts()))
    job.check_nothing_lost()


@pytest.mark.long
def test_a_lost_node_under_srun_is_survived_on_other_nodes(cluster, undisturbed):
    job = cluster.submit_slow("openmpi-pmix", "lost-node-srun", "--requeue", "5")
    lost = job.hosts()[-1][4]
    cluster.crash(lost)
    job.wait(lambda info: info.restarts >= 1, timeout_s=120)
    cluster.hurry()
    assert job.wait_end(timeout_s=120).state == "COMPLETED", job.output()
    assert lost not in job.hosts()[-1].values()
    job.check_went_on(undisturbed("jobs.toml"), starts=len(job.hosts()))
    job.check_nothing_lost()


def test_a_signal_to_the_steps_under_mpirun_is_no_success(cluster, undisturbed):
    job = cluster.submit_slow("mpirun", "steps-signalled")
    # Without --batch the signal also kills mpirun's daemons, and mpirun says 0.
    cluster.call("scancel", "--signal=USR1", job.id)
    info = job.wait_end()
    assert info.state == "FAILED", (info, job.output())
    cluster.wait_until_gone(job)
    cluster.hurry()
    again = cluster.submit("mpich-pmi2", "steps-signalled")
    assert again.wait_end().state == "COMPLETED", again.output()
    again.check_went_on(undisturbed("jobs.toml"))
    again.check_nothing_lost()


def test_a_run_whose_coordinator_still_lives_is_not_started_twice(cluster):
    job = cluster.submit_slow("openmpi-pmix", "twice")
    second = cluster.submit("openmpi-pmix", "twice")
    info = second.wait_end()
    assert info.state == "FAILED"
    assert "another run is writing it" in second.output()
    job.wait_until_busy()
    assert job.info().state == "RUNNING"
    job.cancel()
