"""The report of runs under OASiS: promises, prices, utility and bound, from the journal alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcslaq.core.jobs import JobSpec
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.policies.oasis.live import OasisPolicy
from hpcslaq.record.journal import JournalWriter
from hpcslaq.record.plan import RunPlan
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.report.build import RunReader, build_report
from hpcslaq.report.figures import has_matplotlib
from hpcslaq.report.html import write_html
from hpcslaq.report.text import facts, plan_table
from hpcslaq.sim.jobs import SimJob
from hpcslaq.sim.scaling import ScalingModel
from hpcslaq.sim.simulator import Simulator

SLOT_S = 5.0
HOSTS = {1: "n0", 2: "n0", 3: "n0", 4: "n1", 5: "n1", 6: "n1"}


def sim_job(name: str, alone_s: float, arrival_s: float, utility: UtilityCurve) -> SimJob:
    spec = JobSpec(name, "m", "d", 12, 60, arrival_s=arrival_s, utility=utility)
    model = ScalingModel(12, chunk_s=alone_s / 60 / 12)
    return SimJob(spec, 1.0 / np.arange(1.0, 61.0), model)


def jobs() -> list[SimJob]:
    rich = [
        sim_job(f"r{i}", 90.0, 6.0 * i, UtilityCurve(UtilityKind.SIGMOID, 100.0, 40.0, 0.2))
        for i in range(3)
    ]
    return [*rich, sim_job("poor", 90.0, 13.0, UtilityCurve(UtilityKind.CONSTANT, 2.0))]


def write_run(path: Path, until: float = 1e9, more: tuple[SimJob, ...] = ()) -> RunDirectory:
    """The journal of a simulated run, up to a time, in a run directory."""
    run = RunDirectory.create(path)
    ran = [*jobs(), *more]
    specs = tuple(job.spec for job in ran)
    RunPlan("oasis", specs, {"d": "/data/d"}, round_s=SLOT_S, job_file="jobs/x.toml").write(run)
    with JournalWriter(run.journal) as journal:

        def keep(now: float, event: object, orders: list[Any]) -> None:
            if now <= until:
                journal.append(now, event, *orders)  # type: ignore[arg-type]

        Simulator(OasisPolicy(), ran, 6, SLOT_S, hosts=HOSTS, on_record=keep).run()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return write_run(tmp_path_factory.mktemp("oasis") / "run")


def test_promised_and_actual_ends_are_told_by_slot(run: RunDirectory) -> None:
    told = {job["name"]: job for job in build_report(run)["oasis"]["jobs"]}
    assert set(told) == {"r0", "r1", "r2", "poor"}
    for name in ("r0", "r1", "r2"):
        job = told[name]
        assert job["standing"] == "accepted" and job["late_slots"] <= 1
        assert job["end_slot"] - job["promised_slot"] == job["late_slots"]
        delay_s = (job["end_slot"] - job["arrival_slot"]) * SLOT_S
        assert job["utility"] == pytest.approx(100.0 / (1.0 + np.exp(0.2 * (delay_s - 40.0))))
    assert (told["poor"]["standing"], told["poor"]["utility"]) == ("refused", 0.0)


def test_the_bound_is_above_what_was_earned_and_the_ratio_follows(run: RunDirectory) -> None:
    oasis = build_report(run)["oasis"]
    assert oasis["utility"] == pytest.approx(sum(job["utility"] for job in oasis["jobs"]))
    assert oasis["bound"] >= oasis["utility"] > 0
    assert oasis["certified_ratio"] == pytest.approx(oasis["bound"] / oasis["utility"])
    # Nobody earns more than everyone's peak.
    assert oasis["bound"] <= 302.0 * (1 + 1e-6)
    assert oasis["promised_ratio"] >= 2.0


def test_a_job_that_ended_while_it_was_tried_out_counts_in_the_bound(tmp_path: Path) -> None:
    worth = UtilityCurve(UtilityKind.CONSTANT, 1000.0)
    oasis = build_report(write_run(tmp_path / "run", more=(sim_job("short", 3.0, 0.0, worth),)))
    told = {job["name"]: job for job in oasis["oasis"]["jobs"]}
    assert (told["short"]["planned_utility"], told["short"]["utility"]) == (None, 1000.0)
    assert oasis["oasis"]["bound"] >= oasis["oasis"]["utility"] > 1000.0


def test_prices_lie_between_low_and_high_and_are_low_where_nothing_was_reserved(
    run: RunDirectory,
) -> None:
    oasis = build_report(run)["oasis"]
    prices = np.array(oasis["prices"])
    assert prices.shape[1] == 2 and oasis["hosts"] == ["n0", "n1"]
    assert (prices >= oasis["price_low"] * (1 - 1e-9)).all()
    assert (prices <= oasis["price_high"] * (1 + 1e-9)).all()
    reserved = np.sum(list(oasis["planned"].values()), axis=0)
    for slot in np.flatnonzero(reserved == 0):
        assert np.allclose(prices[slot], oasis["price_low"])
    assert np.allclose(prices[reserved == 6], oasis["price_high"]) and (reserved == 6).any()


def test_ranks_held_are_means_over_the_slot(run: RunDirectory) -> None:
    reader = RunReader(run)
    reader.poll()
    oasis = reader.report()["oasis"]
    held = sum(sum(row) for row in oasis["actual"].values()) * SLOT_S
    seconds = sum(
        len(segment.members) * (segment.end - segment.start)
        for job in reader.summary.jobs.values()
        for segment in job.segments
        if segment.end is not None
    )
    assert held == pytest.approx(seconds, abs=0.01 * seconds)


def test_an_open_run_has_plans_but_no_bound_yet(tmp_path: Path) -> None:
    oasis = build_report(write_run(tmp_path / "open", until=14.0))["oasis"]
    assert oasis["bound"] is None and oasis["certified_ratio"] is None
    assert any(job["promised_slot"] is not None for job in oasis["jobs"])


def test_tables_and_page_show_utility_bound_and_ratio(run: RunDirectory) -> None:
    reader = RunReader(run)
    reader.poll()
    report = reader.report()
    labels = dict(facts(report))
    assert "earned" in labels["utility"] and "no schedule earns more" in labels["utility"]
    assert "2 alpha" in labels["certified ratio"]
    table = plan_table(report)
    assert [row[0] for row in table.rows] == ["r0", "r1", "r2", "poor"]
    assert all(len(row) == len(table.columns) == len(table.is_number) for row in table.rows)
    page = write_html(reader).read_text()
    assert "Plans and utility" in page
    if has_matplotlib():
        assert "Price of a rank over slots" in page and "Ranks per slot by job" in page


def test_other_policies_have_no_such_part(ended_run: RunDirectory) -> None:
    report = build_report(ended_run)
    assert report["oasis"] is None and "utility" not in dict(facts(report))
