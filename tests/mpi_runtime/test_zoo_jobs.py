"""jobs/zoo.toml: every model on real data, as good as its reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcslaq.data.builtin import missing_packages
from hpcslaq.train.catalogue import MODELS

JOBS = Path(__file__).resolve().parents[2] / "jobs"
#: Measures of which less is better.
IS_LESS_BETTER = {"inertia", "perplexity", "log_loss", "rmse"}


@pytest.mark.launch
@pytest.mark.data
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_model_reaches_its_reference_on_real_data(own_mpi, command, tmp_path):
    for name in ("census", "protein", "flights", "patches", "mnist", "news"):
        if missing_packages(name):
            pytest.skip(f"the packages of {name} are not installed (scripts/fetch-data.sh)")
    arguments = ["run", str(JOBS / "zoo.toml"), "--ranks", "5", "--json"]
    done = command(own_mpi, [*arguments, "--out", str(tmp_path / "run")], timeout_s=1700.0)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    jobs = json.loads(done.stdout)["jobs"]
    assert {job["model"] for job in jobs} == set(MODELS)
    wrong = []
    for job in jobs:
        assert job["reference"], f"{job['name']} has no reference"
        for measure, reference in job["reference"].items():
            found = job["metrics"][measure]
            sign = -1.0 if measure in IS_LESS_BETTER else 1.0
            # The same or better within 1 %; an R2 near 0.1 within one point.
            slack = 0.01 if measure == "r2" else 0.01 * abs(reference)
            if sign * (found - reference) < -slack:
                wrong.append((job["name"], measure, found, reference))
    assert not wrong


def test_the_job_file_names_a_reference_for_every_model():
    text = (JOBS / "zoo.toml").read_text()
    assert text.count("[[job]]") == text.count("reference = {") >= len(MODELS)
    assert all(f'model = "{name}"' in text for name in MODELS)
