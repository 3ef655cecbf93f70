"""Handing scripts to a pretended sbatch, and the record of it in the run directory."""

from __future__ import annotations

import pytest

from hpcslaq.errors import LaunchError
from hpcslaq.record.rundir import RunDirectory, RunDirectoryError
from hpcslaq.slurm.submit import (
    check,
    read_submissions,
    record_submission,
    submit,
    write_script,
)


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run")


def test_the_script_is_kept_and_submitted_and_its_job_is_remembered(run, pretend, tmp_path):
    pretend("sbatch", f'echo "$@" >{tmp_path}/args; echo "41;cluster"')
    script = write_script(run, "#!/bin/bash\n")
    assert submit(script, ["--hold"]) == "41"
    assert (tmp_path / "args").read_text().split() == ["--parsable", "--hold", str(script)]
    assert script.stat().st_mode & 0o777 == 0o700
    assert read_submissions(run) == []
    record_submission(run, "41")
    record_submission(run, "42")
    assert [job.job_id for job in read_submissions(run)] == ["41", "42"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1",
            "^sbatch: error: Batch job submission failed: Invalid account",
        ),
        ("echo Submitted batch job 7", "which is no job id"),
        ("true", "which is no job id"),
    ],
)
def test_what_sbatch_says_against_it_is_the_error(run, pretend, script, message):
    pretend("sbatch", script)
    with pytest.raises(LaunchError, match=message):
        submit(write_script(run, "#!/bin/bash\n"))


def test_a_check_gives_slurms_own_words(run, pretend):
    pretend("sbatch", 'echo "sbatch: Job 7 to start at 2030-01-01 using 4 processors" >&2')
    assert "to start at" in check(write_script(run, "#!/bin/bash\n"))
    pretend("sbatch", "echo 'allocation failure: Requested node configuration' >&2; exit 1")
    with pytest.raises(LaunchError, match="allocation failure"):
        check(write_script(run, "#!/bin/bash\n"))


def test_a_damaged_record_is_named(run):
    run.slurm_json.write_text('{"jobs":[{"id":')
    with pytest.raises(RunDirectoryError, match=r"slurm\.json: is damaged"):
        read_submissions(run)


def test_what_a_submission_leaves_does_not_hinder_the_run(run):
    write_script(run, "#!/bin/bash\n")
    record_submission(run, "41")
    (run.logs / "slurm-41.out").write_text("")
    (run.logs / "slurm-41_3.out").write_text("")
    RunDirectory.create(run.path)
    (run.logs / "mine.txt").write_text("")
    with pytest.raises(RunDirectoryError, match="neither empty nor a run"):
        RunDirectory.create(run.path)
