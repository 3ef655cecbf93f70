"""Real jobs over several nodes under each way to start the ranks; and starts that are wrong."""

from __future__ import annotations

from collections import Counter

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.launch]

FORMS = ["openmpi-pmix", "mpich-pmi2", "mpirun", "mpiexec"]


@pytest.mark.parametrize("form", FORMS)
def test_jobs_train_over_two_nodes_with_the_same_digests(cluster, undisturbed, form):
    job = cluster.submit(form, f"launch-{form}", jobs="brief.toml")
    info = job.wait_end()
    assert (info.state, info.exit_code) == ("COMPLETED", "0:0"), job.output()
    result = job.result()
    assert result is not None
    assert (result["exit_code"], result["num_ranks"]) == (0, 5)
    (hosts,) = job.hosts()
    # Rank 0 shares a core of the first node: no worker is lost to it.
    assert sorted(Counter(hosts.values()).values()) == [2, 2]
    assert job.digests() == undisturbed("brief.toml")


@pytest.mark.parametrize("form", ["mpirun", "mpiexec"])
def test_a_batch_script_of_ones_own_needs_one_line(cluster, undisturbed, form):
    out = f"own-{form}"
    python = cluster.python(form)
    done = cluster.call(
        *("sbatch", "--parsable", "-N2", "--ntasks-per-node=2", "-t", "10", "-o", f"{out}.txt"),
        *("--wrap", f"'{python}' -m hpcslaq run brief.toml --out {out} --quiet"),
    )
    job = cluster.run(out, done.stdout.strip())
    info = job.wait_end()
    assert (info.state, info.exit_code) == ("COMPLETED", "0:0"), done
    (hosts,) = job.hosts()
    assert sorted(Counter(hosts.values()).values()) == [2, 2]
    assert job.digests() == undisturbed("brief.toml")


def test_a_copied_template_runs_with_what_the_sites_file_says(cluster, undisturbed, root):
    """As slurm/README.md says: copy one, set the variables at its top, and sbatch it."""
    (cluster.work / "slurm").mkdir()
    site = (root / "slurm" / "site.sh").read_text()
    python = cluster.python("mpich-pmi2")
    site = site.replace("#PYTHON=python3", f"PYTHON={python}")
    # This template says pmix; the site's MPI wants pmi2.
    site = site.replace("#LAUNCHER=(srun --mpi=pmix_v4", "LAUNCHER=(srun --mpi=pmi2")
    (cluster.work / "slurm" / "site.sh").write_text(site)
    text = (root / "slurm" / "requeue.sbatch").read_text()
    text = text.replace("JOB_FILE=jobs/quickstart.toml", "JOB_FILE=brief.toml")
    text = text.replace("RUN_DIR=runs/quickstart", "RUN_DIR=runs/copied")
    text = text.replace("--ntasks-per-node=8", "--ntasks-per-node=2").replace("=1-00:", "=00:")
    (cluster.work / "mine.sbatch").write_text(text.replace("00:00:00", "00:20:00"))
    done = cluster.call("sbatch", "--parsable", "mine.sbatch")
    assert done.returncode == 0, done.stderr
    job = cluster.run("runs/copied", done.stdout.strip())
    info = job.wait_end()
    assert (info.state, info.exit_code) == ("COMPLETED", "0:0"), job.output()
    assert job.digests() == undisturbed("brief.toml")


def test_singletons_are_refused_by_one_message_and_not_started_again(cluster):
    # Open MPI knows nothing of srun's pmi2: every rank is a world of its own.
    openmpi = cluster.python("openmpi-pmix")
    job = cluster.submit("mpich-pmi2", "singletons", "--python", openmpi, "--requeue", "3")
    info = job.wait_end()
    assert (info.state, info.exit_code, info.restarts) == ("FAILED", "4:0", 0)
    assert job.output().count("the launcher started 5 ranks, but MPI sees a world of 1") == 1
    assert "Traceback" not in job.output()
    assert job.result() is None


def test_a_single_rank_is_refused_by_one_message(cluster):
    python = cluster.python("mpich-pmi2")
    done = cluster.call(
        *("srun", "-N1", "-n1", "--mpi=pmi2", python, "-m", "mpi4py", "-m", "hpcslaq"),
        *("run", "brief.toml", "--out", "single"),
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert done.stderr.count("1 rank is not enough") == 1
    assert not (cluster.work / "single").exists()


def test_an_array_makes_one_run_for_each_policy(cluster, undisturbed):
    job = cluster.submit(
        *("mpich-pmi2", "array", "--array", "0-1", "--policy", "slaq,fifo"),
        jobs="brief.toml",
        nodes=1,
    )
    runs = [cluster.run(f"array/{index}", job.id) for index in (0, 1)]
    for run in runs:
        run.wait_result()
    assert [run.policy() for run in runs] == ["slaq", "fifo"]
    for run in runs:
        assert run.digests() == undisturbed("brief.toml")


def test_slurm_checks_a_script_without_taking_it(cluster):
    python = cluster.python("mpich-pmi2")
    line = ("slurm", "submit", "brief.toml", "--template", "mpich-pmi2", "-t", "10", "--test-only")
    fits = cluster.hpcslaq(python, *line, "--ntasks-per-node", "2", "--out", "fits")
    assert fits.returncode == 0, fits.stderr
    assert "to start at" in fits.stdout
    large = cluster.hpcslaq(python, *line, "--ntasks-per-node", "99", "--out", "large")
    assert large.returncode == 4
    assert "Requested node configuration is not available" in large.stderr
    assert not (cluster.work / "fits" / "slurm.json").exists()
