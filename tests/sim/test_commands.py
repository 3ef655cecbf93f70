"""`hpcslaq simulate`, `trace` and `record`, as they are typed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcslaq.cli.main import cli
from hpcslaq.sim.curves import recorded_curves
from hpcslaq.sim.workload_file import read_workload
from tests.sim.test_traces import HELIOS, SWF
from tests.sim.test_workload_file import TINY

WORKLOADS = Path(__file__).parents[2] / "jobs" / "workloads"


def invoke(*args: str):
    return CliRunner().invoke(cli, list(args))


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY + "load = 0.9\n")
    return str(path)


def test_simulate_compares_policies_over_seeds(tiny: str, tmp_path: Path) -> None:
    asked = (
        "simulate",
        tiny,
        "--policy",
        "fair,slaq",
        "--seeds",
        "2",
        "--out",
        str(tmp_path / "o"),
    )
    result = invoke(*asked, "--json")
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert list(value["policies"]) == ["fair", "slaq"]
    assert len(value["runs"]) == 4
    assert "change_low" in value["policies"]["slaq"]["mean_jct_s"]
    assert len(list((tmp_path / "o").iterdir())) == 4
    shown = invoke(*asked)
    assert shown.exit_code == 0
    assert "slaq" in shown.output


def test_an_interrupted_simulate_says_how_to_go_on(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcslaq.cli.simulate.run_tasks", interrupted)
    result = invoke("simulate", tiny, "--policy", "fair", "--out", str(tmp_path / "kept"))
    assert result.exit_code != 0
    assert "the same command goes on" in result.stderr and "kept" in result.stderr


def test_simulate_takes_another_size_load_and_number(tiny: str) -> None:
    result = invoke(
        "simulate", tiny, "--policy", "fifo", "--workers", "3", "--number", "4", "--json"
    )
    value = json.loads(result.stdout)
    assert value["workers"] == 3
    assert value["policies"]["fifo"]["num_jobs"]["mean"] == 4


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("--policy", "best"), 2, "unknown policy"),
        (("--policy", "fair", "--curves", "/nowhere"), 3, "there is no such file"),
        (("--seeds", "0"), 2, "seeds"),
    ],
)
def test_simulate_refuses_in_one_line(tiny: str, args, code: int, text: str) -> None:
    result = invoke("simulate", tiny, *args)
    assert result.exit_code == code
    assert text in result.output or text in str(result.exception)


def test_a_missing_workload_is_not_found() -> None:
    assert invoke("simulate", "none.toml").exit_code == 3


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_workloads_are_valid(path: Path) -> None:
    workload = read_workload(path)
    assert len(workload.jobs(0)) == workload.mix.number


def test_the_papers_workload_is_the_papers() -> None:
    workload = read_workload(WORKLOADS / "slaq_paper.toml")
    jobs = workload.jobs(3)
    assert (len(jobs), workload.shape.workers, workload.shape.round_s) == (160, 640, 3.0)
    gaps = [b.spec.arrival_s - a.spec.arrival_s for a, b in itertools.pairwise(jobs)]
    assert all(gap == int(gap) for gap in gaps)
    assert sum(gaps) / len(gaps) == pytest.approx(15.0, rel=0.1)


def test_the_shipped_curves_are_of_many_algorithms_and_fall() -> None:
    curves = recorded_curves()
    assert len({curve.facts["model"] for curve in curves.values()}) >= 12
    for name, curve in curves.items():
        assert curve.losses.min() < curve.losses[0], name
        assert curve.cpu_s is not None and curve.cpu_s.size == curve.losses.size
    folder = Path(__file__).parents[2] / "hpcslaq" / "sim" / "recorded"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2 * 2**20


# -- trace ---------------------------------------------------------------------------------


@pytest.fixture
def helios(tmp_path: Path) -> str:
    path = tmp_path / "cluster_log.csv"
    path.write_text(HELIOS)
    return str(path)


def test_trace_check_says_what_was_left_out(helios: str) -> None:
    result = invoke("trace", "check", helios)
    assert result.exit_code == 0
    assert "2 jobs, format helios" in result.output
    assert "1 rows left out: without GPUs" in result.output
    assert json.loads(invoke("trace", "check", helios, "--json").stdout)["num_jobs"] == 2


def test_trace_check_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.swf"
    path.write_text(SWF.replace("300 4", "300"))
    result = invoke("trace", "check", str(path), "--json")
    assert result.exit_code == 2
    assert "bad.swf:3: has 17 fields" in json.loads(result.stdout)["error"]["message"]


def test_trace_summary_and_convert(helios: str, tmp_path: Path) -> None:
    assert "workers" in invoke("trace", "summary", helios).output
    assert json.loads(invoke("trace", "summary", helios, "--json").stdout)["num_jobs"] == 2
    out = tmp_path / "own.csv"
    assert invoke("trace", "convert", helios, "--out", str(out)).exit_code == 0
    assert invoke("trace", "check", str(out)).exit_code == 0
    assert invoke("trace", "convert", helios).output == out.read_text()
    assert invoke("trace", "schema").output.startswith("hpcslaq: Our own CSV.")


def test_a_trace_can_be_a_workload(helios: str, tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    path.write_text(
        '[workload]\nworkers = 8\nround = "10s"\n'
        '[trace]\nfile = "cluster_log.csv"\niteration = "5s"\nelastic = false\n'
    )
    result = invoke("simulate", str(path), "--policy", "fifo", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["policies"]["fifo"]["num_done"]["mean"] == 2


# -- record --------------------------------------------------------------------------------


def test_record_writes_a_curve_per_job(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HPCSLAQ_CACHE", str(tmp_path / "cache"))
    rows = "\n".join(f"{i % 7},{i % 3},{2 * (i % 7) - (i % 3)}" for i in range(60))
    (tmp_path / "data.csv").write_text(f"a,b,y\n{rows}\n")
    (tmp_path / "jobs.toml").write_text(
        '[data.mine]\npath = "data.csv"\nlabel = "y"\ntask = "regression"\n'
        '[[job]]\nname = "line"\nmodel = "linear"\ndata = "mine"\nchunks = 4\nepochs = 15\n'
    )
    out = tmp_path / "curves"
    result = invoke("record", str(tmp_path / "jobs.toml"), "--out", str(out), "--iterations", "9")
    assert result.exit_code == 0, result.output
    assert (out / "line.csv").is_file()
    again = invoke("record", str(tmp_path / "jobs.toml"), "--out", str(out), "--json")
    assert json.loads(again.stdout) == []  # it is there already
    missing = invoke("record", str(tmp_path / "jobs.toml"), "--out", str(out), "--job", "x")
    assert missing.exit_code == 3
