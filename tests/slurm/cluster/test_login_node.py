"""What a user does on the login node while a run is on; and the first steps as documented."""

from __future__ import annotations

import json
import re
import time

import pytest

from hpcslaq.core import events as ev

pytestmark = [pytest.mark.slurm, pytest.mark.launch]

MORE = """\
[data.others]
path = "rows.npy"
label = 6
task = "classification"

[[job]]
name = "{name}"
model = "logistic"
data = "others"
chunks = 4
epochs = {epochs}
options = {{ solver = "gd", l2 = 1e-2 }}
"""


def test_a_run_that_is_open_takes_jobs_and_requests_until_it_is_closed(cluster):
    python = cluster.python("mpich-pmi2")
    job = cluster.submit_slow("mpich-pmi2", "open", "--serve")

    def ask(*arguments):
        done = cluster.hpcslaq(python, *arguments, "--json")
        return done.returncode, json.loads(done.stdout)

    (cluster.work / "more.toml").write_text(MORE.format(name="late", epochs=50))
    assert ask("submit", "open", "more.toml") == (0, {"requests": {"late": "taken"}, "reasons": []})
    # The same job once more, but another one.
    (cluster.work / "more.toml").write_text(MORE.format(name="late", epochs=60))
    code, answer = ask("submit", "open", "more.toml")
    assert (code, answer["requests"]) == (2, {"late": "refused"})
    assert "there is a job 'late' in this run already" in answer["reasons"][0]

    code, status = ask("status", "open", "--slurm")
    assert code == 0
    assert status["run"]["activity"] == "running"
    assert (status["slurm"]["job_id"], status["slurm"]["state"]) == (job.id, "RUNNING")
    assert 0 < status["slurm"]["time_left_s"] <= 600

    for name in ("steady", "second"):
        assert ask("cancel", "open", name, "--reason", "enough")[0] == 0
    assert ask("cancel", "open", "nobody")[0] == 2
    # Open, though nothing is left to do.
    until = time.monotonic() + 30
    while len(job.events(ev.JobFinished)) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    assert job.info().state == "RUNNING"
    assert ask("close", "open")[0] == 0
    info = job.wait_end()
    assert (info.state, info.exit_code) == ("COMPLETED", "0:0"), job.output()
    assert set(job.digests()) == {"newton", "late"}
    assert [event.job for event in job.events(ev.JobCancelled)] == ["steady", "second"]
    assert ask("cancel", "open", "late")[0] == 2


def test_a_job_that_waits_in_the_queue_has_a_status(cluster):
    python = cluster.python("mpich-pmi2")
    job = cluster.submit("mpich-pmi2", "waiting", "--sbatch=--begin=now+1hour", jobs="brief.toml")
    shown = cluster.hpcslaq(python, "status", "waiting")
    assert shown.returncode == 0, shown.stderr
    assert f"Slurm job {job.id} was submitted" in shown.stdout
    asked = cluster.hpcslaq(python, "status", "waiting", "--slurm", "--json")
    assert json.loads(asked.stdout)["slurm"]["state"] == "PENDING"
    job.cancel()


def test_a_slurm_that_hangs_does_not_keep_the_status(cluster, tmp_path):
    python = cluster.python("mpich-pmi2")
    cluster.submit("mpich-pmi2", "hanging", "--sbatch=--begin=now+1hour").cancel()
    pretended = tmp_path / "squeue"
    pretended.write_text("#!/bin/sh\nsleep 600\n")
    pretended.chmod(0o755)
    path = f"{tmp_path}:{cluster.environ['PATH']}"
    shown = cluster.hpcslaq(python, "status", "hanging", "--slurm", PATH=path)
    assert shown.returncode == 0, shown.stderr
    assert "unknown (squeue did not answer within 4 s)" in shown.stdout


@pytest.mark.data
def test_the_first_job_of_the_documentation_works_as_written(cluster, root):
    page = (root / "docs" / "slurm.md").read_text()
    toml = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    commands = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    assert toml is not None and commands is not None
    (cluster.work / "first.toml").write_text(toml[1])
    python = cluster.python("mpich-pmi2")
    if cluster.call(python, "-c", "import sklearn").returncode != 0:
        pytest.skip("needs the extra `data` (scripts/test.sh sets it up)")
    script = f'set -e\nhpcslaq() {{ "{python}" -m hpcslaq "$@"; }}\n{commands[1]}'
    done = cluster.call("bash", "-c", script, timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished; 2 of 2 jobs done" in done.stdout
