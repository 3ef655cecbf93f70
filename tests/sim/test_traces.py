"""Readers of everybody's traces: what they take, what they leave out, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.errors import NotFoundError
from hpcslaq.sim.traces import FORMATS, TraceError, base, format_own, read_trace, summary_of
from hpcslaq.sim.traces.jobs import Guesses, sim_jobs

SWF = """; Version: 2.2
; MaxProcs: 128
 1 100 10 300 4 -1 -1 4 600 -1 1 7 1 1 1 1 -1 -1
 2  50  0  20 -1 -1 -1 2 600 -1 0 7 1 1 1 1 -1 -1
 3 120  0  -1 8 -1 -1 8 600 -1 5 7 1 1 1 1 -1 -1
 4 130  0  60 1 -1 -1 1 600 -1 3 7 1 1 1 1 -1 -1
"""
GAVEL = (
    "ResNet-50 (batch size 64)\tpython3 main.py\timages\t-n\t1\t1000\t2\t1.000000\t-1.000000\t0.5\n"
    "LM (batch size 5)\tpython3 main.py\tlm\t-n\t0\t10\t1\t2\t3600\t60.25\n"
)
PHILLY = json.dumps(
    [
        {
            "status": "Pass",
            "vc": "ee9e8c",
            "jobid": "application_1506638472019_10238",
            "attempts": [
                {
                    "start_time": "2017-10-07 01:11:15",
                    "end_time": "2017-10-07 01:12:15",
                    "detail": [
                        {"ip": "m1", "gpus": ["gpu0", "gpu1"]},
                        {"ip": "m2", "gpus": ["gpu7"]},
                    ],
                },
                {
                    "start_time": "2017-10-07 02:00:00",
                    "end_time": "2017-10-07 02:00:30",
                    "detail": [],
                },
                {"start_time": "None", "end_time": "None", "detail": []},
            ],
            "submitted_time": "2017-10-07 01:11:03",
            "user": "ce2e3c",
        },
        {
            "status": "Killed",
            "jobid": "b",
            "attempts": [],
            "submitted_time": "2017-10-07 01:00:00",
        },
    ],
    indent=1,
)
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
5,u1,vc1,8,48,1,COMPLETED,2020-04-01 00:08:28,2020-04-01 00:08:30,2020-04-01 00:10:30,120,2
6,u1,vc1,0,4,1,FAILED,2020-04-01 00:09:00,2020-04-01 00:09:00,2020-04-01 00:09:09,9,0
7,u2,vc1,1,4,1,CANCELLED,2020-04-01 00:08:00,2020-04-01 00:09:00,2020-04-01 00:09:40,40,60
"""  # noqa: E501
ALIBABA = """j1,worker,2.0,Terminated,1000.0,1100.0,600.0,29.3,100.0,V100
j1,ps,1.0,Terminated,990.0,1100.0,600.0,29.3,,
j2,tensorflow,1.0,Failed,1500.0,1800.0,600.0,29.3,25.0,MISC
j1,evaluator,1.0,Terminated,1000.0,1150.0,600.0,29.3,50.0,V100
j3,w,1.0,Running,1500.0,,600.0,29.3,25.0,MISC
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,2,460,,LS,Succeeded,427061,427100.5,427061.5
openb-pod-0002,6000,12288,0,0,,LS,Failed,427061,427100,427061
"""  # noqa: E501
ELASTICFLOW = """job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
a-1,3715485,3249,deepspeech2,3716178,32,1,1075
b-2,3717550,48266,inception3,3720405,64,8,3604
"""  # noqa: E501
ELASTICFLOW_REAL = """job_id,submit_time,real_iteration,model_name,ddl,batch_size,num_gpu,real_duration,duration,iteration
0,0,50,vgg16,771220,256,1,100,976570,1282877
"""  # noqa: E501
POLLUX = """name,time,application,num_replicas,batch_size
cifar10-0,53,cifar10,6,2048
"""
OWN = """job,submit_s,workers,duration_s,iterations,model,batch_size,deadline_s,state,user,weight
one,10.5,4,100,,svm,32,500,done,ann,2
"two, or three",3,1,,50,,,,,,
"""
SAMPLES = {
    "hpcslaq": OWN,
    "pollux": POLLUX,
    "helios": HELIOS,
    "alibaba-pods": PODS,
    "alibaba": ALIBABA,
    "elasticflow": ELASTICFLOW,
    "swf": SWF,
    "gavel": GAVEL,
    "philly": PHILLY,
}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def rows_of(trace) -> list[tuple]:
    return [(job.name, job.submit_s, job.num_workers, job.duration_s) for job in trace.jobs]


def test_there_is_a_sample_of_every_format() -> None:
    assert set(SAMPLES) == set(FORMATS)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_format_is_recognised_by_the_first_line(tmp_path: Path, name: str) -> None:
    assert read_trace(write(tmp_path, SAMPLES[name])).format == name


@pytest.mark.parametrize(
    ("text", "rows", "skipped"),
    [
        (
            SWF,
            [("job-2", 0.0, 2, 20.0), ("job-1", 50.0, 4, 300.0)],
            {"without a run time": 1, "a part of another job": 1},
        ),
        (GAVEL, [("ResNet-50-1", 0.0, 2, None), ("LM-2", 59.75, 1, None)], {}),
        (PHILLY, [("application_1506638472019_10238", 0.0, 3, 90.0)], {"that never ran": 1}),
        (HELIOS, [("7", 0.0, 1, 40.0), ("5", 28.0, 8, 120.0)], {"without GPUs": 1}),
        (
            ALIBABA,
            [("j1", 0.0, 3, 150.0), ("j2", 500.0, 1, 300.0)],
            {"without GPUs": 1, "without start and end": 1},
        ),
        (
            PODS,
            [("openb-pod-0000", 0.0, 1, 12537496.0), ("openb-pod-0001", 427061.0, 2, 39.0)],
            {"without GPUs": 1},
        ),
        (ELASTICFLOW, [("a-1", 0.0, 1, 1075.0), ("b-2", 2065.0, 8, 3604.0)], {}),
        (ELASTICFLOW_REAL, [("0", 0.0, 1, 100.0)], {}),
        (POLLUX, [("cifar10-0", 0.0, 6, None)], {}),
        (OWN, [("two__or_three", 0.0, 1, None), ("one", 7.5, 4, 100.0)], {}),
    ],
)
def test_jobs_are_read_in_order_of_submission(tmp_path: Path, text, rows, skipped) -> None:
    trace = read_trace(write(tmp_path, text))
    assert rows_of(trace) == rows
    assert trace.skipped == skipped


def test_further_columns_are_kept(tmp_path: Path) -> None:
    job, other = read_trace(write(tmp_path, ELASTICFLOW)).jobs
    assert (job.iterations, job.model, job.batch_size) == (3249.0, "deepspeech2", 32)
    assert (job.deadline_s, other.deadline_s, job.line) == (693.0, 2855.0, 2)
    assert read_trace(write(tmp_path, ELASTICFLOW_REAL)).jobs[0].iterations == 50.0
    gavel = read_trace(write(tmp_path, GAVEL)).jobs
    assert [job.deadline_s for job in gavel] == [None, 3600.0]
    assert [job.weight for job in gavel] == [1.0, 2.0]
    states = [job.state for job in read_trace(write(tmp_path, HELIOS)).jobs]
    assert states == ["cancelled", "done"]


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"pollux"}))
def test_a_converted_trace_says_the_same(tmp_path: Path, name: str) -> None:
    trace = read_trace(write(tmp_path, SAMPLES[name]))
    text = "\n".join(format_own(trace)) + "\n"
    again = read_trace(write(tmp_path, text))
    assert again.format == "hpcslaq"
    for old, new in zip(trace.jobs, again.jobs, strict=True):
        for key in ("name", "submit_s", "num_workers", "duration_s", "deadline_s", "weight"):
            assert getattr(new, key) == getattr(old, key)


def test_a_trace_without_durations_is_not_converted(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="trace:2: says neither how long"):
        list(format_own(read_trace(write(tmp_path, POLLUX))))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "trace:1: is in no known format; name one of: hpcslaq, "),
        ("a,b\n", "trace:1: is in no known format"),
        (OWN.replace("10.5", "soon"), "trace:2: submit_s: 'soon' is no number"),
        (OWN.replace("10.5", "-1"), r"trace:2: submit_s: '-1' is not in \[0, 1e\+11\]"),
        (OWN.replace("10.5", "nan"), "trace:2: submit_s: 'nan' is not in"),
        (OWN.replace("10.5,4", "10.5,4.5"), "trace:2: workers: 4.5 is not whole"),
        (OWN.replace("10.5,4", "10.5,0"), "trace:2: workers: '0' is not in"),
        (OWN.replace("done", "fine"), "trace:2: state: 'fine'"),
        (OWN.replace("3,1,,50", "3,1,,"), "trace:3: has neither duration_s nor iterations"),
        (OWN.replace("ann,2", "ann"), "trace:2: has 10 cells, the header has 11"),
        (OWN.replace('three"', "three"), "trace:3: has quotes that do not match"),
        ("job,submit_s,workers,job\n", "trace:1: has a column twice"),
        ("job,submit_s,workers\n", r"trace: holds no job \(no rows\)"),
        (ELASTICFLOW.replace("3716178", "1"), "trace:2: has a deadline, 1, that is not after"),
        (SWF.replace("300 4", "300"), "trace:3: has 17 fields, the format has 18"),
        (GAVEL + "a\tb\n", "trace:3: has 2 tab-separated cells, expected 10"),
        (PHILLY.replace("01:11:03", "1 o'clock"), "trace:2: submitted_time: .* is no time"),
        (PHILLY[:-30], r"trace:\d+: is not JSON"),
        ("[1, 2]", "trace:1: is not an object, as a job must be"),
        (HELIOS.replace("2020-04-01 00:08:28", "2020-04-41 00:08:28"), "trace:2: submit_time: "),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem) as caught:
        read_trace(write(tmp_path, text))
    assert len(str(caught.value).splitlines()) == 1


def test_sizes_are_bounded(tmp_path: Path, monkeypatch) -> None:
    path = write(tmp_path, OWN + "x" * 100_000)
    with pytest.raises(TraceError, match="trace:4: is longer than 65536 bytes"):
        read_trace(path)
    monkeypatch.setattr(base, "MAX_JOBS", 1)
    with pytest.raises(TraceError, match="more than 1 jobs"):
        read_trace(write(tmp_path, OWN))
    monkeypatch.setattr(base, "MAX_BYTES", 10)
    with pytest.raises(TraceError, match="is longer than 10 bytes"):
        read_trace(path)


def test_missing_files_and_directories(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_trace(tmp_path / "none")
    with pytest.raises(TraceError, match="is a directory"):
        read_trace(tmp_path)
    with pytest.raises(TraceError, match="unknown format 'xml'"):
        read_trace(write(tmp_path, OWN), "xml")


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    text = "job,submit_s,workers,duration_s\n" + "same,0,1,1\n" * 3
    assert [job.name for job in read_trace(write(tmp_path, text)).jobs] == [
        "same",
        "same-2",
        "same-3",
    ]


def test_a_summary_counts_work_and_load(tmp_path: Path) -> None:
    figures = summary_of(read_trace(write(tmp_path, HELIOS)))
    assert figures["worker_seconds"] == 40 + 8 * 120
    assert figures["span_s"] == 28.0
    assert figures["duration_s"]["median"] == 80.0
    assert figures["workers"] == {"1": 1, "8": 1}
    assert json.dumps(figures)


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from(sorted(SAMPLES)))
def test_a_damaged_trace_is_read_or_refused_in_one_line(tmp_path_factory, data, name) -> None:
    text = bytearray(SAMPLES[name].encode())
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.mktemp("fuzz") / "trace"
    path.write_bytes(text)
    for asked in (None, name):
        try:
            trace = read_trace(path, asked)
        except TraceError as error:
            assert len(str(error).splitlines()) == 1
            continue
        assert trace.jobs[0].submit_s == 0.0
        assert all(job.num_workers >= 1 for job in trace.jobs)
        sim_jobs(trace, number=5)


@settings(max_examples=60)
@given(st.binary(max_size=300), st.sampled_from(sorted(SAMPLES)))
def test_any_bytes_are_read_or_refused(tmp_path_factory, data: bytes, name: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace"
    path.write_bytes(data)
    for asked in (None, name):
        try:
            read_trace(path, asked)
        except TraceError as error:
            assert len(str(error).splitlines()) == 1


# -- jobs of the simulator -----------------------------------------------------------------


def test_a_job_takes_its_duration_on_its_own_workers(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, HELIOS))
    for guesses in (Guesses(iteration_s=10.0), Guesses(10.0, is_elastic=False, speed_up=4.0)):
        for job, asked in zip(sim_jobs(trace, guesses), trace.jobs, strict=True):
            lasts = job.num_iterations * job.step_time.seconds(asked.num_workers)
            assert lasts == pytest.approx(asked.duration_s / guesses.speed_up)
            assert job.spec.arrival_s == asked.submit_s / guesses.speed_up


def test_rigid_jobs_keep_their_workers_and_elastic_ones_may_grow(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, HELIOS))
    rigid = sim_jobs(trace, Guesses(is_elastic=False))[1].spec
    assert (rigid.min_workers, rigid.worker_limit) == (8, 8)
    elastic = sim_jobs(trace)[1].spec
    assert (elastic.min_workers, elastic.worker_limit) == (1, 32)


def test_losses_depend_on_the_seed_and_the_name_only(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, HELIOS))
    first, again, other = (sim_jobs(trace, Guesses(1.0), seed=seed) for seed in (1, 1, 2))
    assert [list(job.losses) for job in first] == [list(job.losses) for job in again]
    assert [list(job.losses) for job in first] != [list(job.losses) for job in other]
