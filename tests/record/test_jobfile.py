"""Job files: what they mean, and the one line that says what is wrong with them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcslaq.core.jobs import Convergence, JobSpec, Sync
from hpcslaq.core.utility import UtilityCurve, UtilityKind
from hpcslaq.errors import JobFileError, NotFoundError, TrainingError
from hpcslaq.record import jobfile, tomlfile
from hpcslaq.record.jobfile import (
    Catalogue,
    JobFile,
    ModelEntry,
    from_document,
    parse_job_file,
    read_job_file,
    to_document,
    with_policy,
)
from hpcslaq.record.schema import Field, FieldType, dataclass_validator
from hpcslaq.record.toml import dump_toml


@dataclass(frozen=True, slots=True)
class Slaq:
    window: int = 20
    floor: float = 1.0
    patience_s: float | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window: {self.window} < 1")


@dataclass(frozen=True, slots=True)
class Fair:
    pass


@dataclass(frozen=True, slots=True)
class LogregOptions:
    l2: float = 0.0
    solver: str = "lbfgs"
    bias: bool = True

    def __post_init__(self) -> None:
        if self.solver not in ("lbfgs", "gd"):
            raise ValueError(f"solver: {self.solver!r} is neither 'lbfgs' nor 'gd'")


def check_mlp(options: Mapping[str, object]) -> Mapping[str, object]:
    for key in options:
        if key not in ("hidden", "lr", "seed"):
            raise TrainingError(f"{key}: the model has no such option")
    return {"lr": 0.1, **options}


def check_mlp_quietly(options: Mapping[str, object]) -> Mapping[str, object]:
    try:
        return check_mlp(options)
    except TrainingError as error:
        raise ValueError(str(error)) from None


def logreg_class(options: Mapping[str, object]) -> Convergence:
    is_newton = options.get("solver", "lbfgs") == "lbfgs"
    return Convergence.SUPERLINEAR if is_newton else Convergence.SUBLINEAR


def plugin(name: str) -> ModelEntry:
    if name.startswith("broken"):
        raise NotFoundError(f"{name}: there is no such module")
    return ModelEntry(lambda options: options)


CATALOGUE = Catalogue(
    models={
        "logreg": ModelEntry(dataclass_validator(LogregOptions), logreg_class),
        "mlp": ModelEntry(check_mlp_quietly),
        "kmeans": ModelEntry(sync_problem=lambda options: "kmeans has no slices"),
    },
    policies={"slaq": dataclass_validator(Slaq), "fair": dataclass_validator(Fair)},
    builtin_data=("census", "digits"),
    data_fields={
        "label": Field(FieldType.TEXT),
        "format": Field(FieldType.TEXT, choices=("csv", "npy")),
        "rows": Field(FieldType.INTEGER, least=1),
        "test_path": Field(FieldType.PATH, is_list=True),
    },
    plugin=plugin,
)

SMALL = """
[[job]]
name = "a"
model = "logreg"
data = "census"
epochs = 3
"""

FULL = """
[run]
policy = { name = "slaq", window = 5, patience_s = "1m" }
round = "500ms"
seed = 7
checkpoint_every = "5m"
keep_checkpoints = 2
report_every = 0.5
ranks = 5
time_limit = "1h30m"

[data.flights]
path = "flights.csv"
label = "delay"
test_path = ["sub/../t1.csv", "/abs/t2.csv"]

[data.small]
source = "census"
rows = 1000

[defaults]
data = "census"
epochs = 10
weight = 2
options.l2 = 0.5

[[job]]
name = "a"
model = "logreg"

[[job]]
name = "b"
model = "logreg"
data = "flights"
chunks = 8
epochs = 2
tolerance = 1e-6
patience = 3
target_loss = -0.5
arrival = "10s"
min_workers = 2
max_workers = 4
weight = 0.5
deadline = "5m"
seed = 11
self_check = true
reference = { auc = 0.9, loss = 1 }
options = { solver = "gd", bias = false }
"""


def parse(text: str, **options: bool) -> JobFile:
    return parse_job_file(text, "/jobs/x.toml", CATALOGUE, **{"check_files": False, **options})


def problem(text: str) -> str:
    with pytest.raises(JobFileError) as caught:
        parse(text)
    message = str(caught.value)
    assert message.startswith("/jobs/x.toml: ")
    assert "\n" not in message and len(message) < 1000
    return message.removeprefix("/jobs/x.toml: ")


def test_a_small_file_takes_the_defaults() -> None:
    job_file = parse(SMALL)
    assert job_file.run.policy == "slaq"
    assert job_file.run.policy_options == {}
    assert job_file.jobs == (
        JobSpec("a", "logreg", "census", 16, 3, convergence=Convergence.SUPERLINEAR),
    )
    assert job_file.data == {"census": {"source": "census"}}


def test_a_full_file_is_read_with_all_its_keys() -> None:
    job_file = parse(FULL)
    run = job_file.run
    assert (run.policy, run.policy_options) == ("slaq", {"window": 5, "patience_s": 60.0})
    assert (run.round_s, run.seed, run.checkpoint_every_s) == (0.5, 7, 300.0)
    assert (run.keep_checkpoints, run.report_every_s, run.ranks) == (2, 0.5, 5)
    assert run.time_limit_s == 5400.0
    a, b = job_file.jobs
    assert (a.max_epochs, a.weight, a.seed, a.options) == (10, 2.0, 7, {"l2": 0.5})
    assert b == JobSpec(
        name="b",
        model="logreg",
        data="flights",
        num_chunks=8,
        max_epochs=2,
        min_workers=2,
        max_workers=4,
        weight=0.5,
        arrival_s=10.0,
        target_loss=-0.5,
        tolerance=1e-6,
        patience=3,
        deadline_s=300.0,
        seed=11,
        convergence=Convergence.SUBLINEAR,
        options={"l2": 0.5, "solver": "gd", "bias": False},
    )
    assert job_file.data == {
        "census": {"source": "census"},
        "flights": {
            "path": "/jobs/flights.csv",
            "label": "delay",
            "test_path": ["/jobs/t1.csv", "/abs/t2.csv"],
        },
    }


def test_references_and_self_checks_are_kept_beside_the_specs() -> None:
    job_file = parse(FULL)
    assert job_file.references == {"b": {"auc": 0.9, "loss": 1.0}}
    assert job_file.self_checks == ("b",)


def test_a_whole_run_is_self_checked_but_for_jobs_that_say_no() -> None:
    other = SMALL.replace('"a"', '"b"') + "self_check = false\n"
    job_file = parse("[run]\nself_check = true\n" + SMALL + other)
    assert job_file.run.self_check
    assert job_file.self_checks == ("a",)
    assert problem(SMALL + 'self_check = "yes"\n').startswith('job[1] "a".self_check: must be true')


@pytest.mark.parametrize("value", ['"0.9"', "0.9", "{ auc = nan }", "{ auc = [0.9] }"])
def test_a_reference_is_a_table_of_numbers(value: str) -> None:
    assert problem(SMALL + f"reference = {value}\n").startswith('job[1] "a".reference')


def test_a_stop_rule_alone_is_enough() -> None:
    (job,) = parse(SMALL.replace("epochs = 3", "tolerance = 1e-3")).jobs
    assert (job.max_epochs, job.tolerance) == (1000, 1e-3)


SERVED = SMALL + 'sync = "ps"\n'


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        ("", {"num_servers": 1}),
        ("servers = 3", {"num_servers": 3}),
        ("workers_per_server = 2.5", {"workers_per_server": 2.5}),
        ("servers = 2\nstaleness = 4", {"num_servers": 2, "staleness": 4}),
        ('staleness = "unbounded"', {"num_servers": 1, "staleness": math.inf}),
    ],
)
def test_parameter_servers_are_asked_for_by_number_or_ratio(lines: str, fields: Any) -> None:
    job_file = parse(SERVED + lines)
    assert job_file.jobs[0] == replace(parse(SMALL).jobs[0], sync=Sync.PS, **fields)
    run_toml = dump_toml({"format": 1, **to_document(job_file)})
    assert from_document(tomllib.loads(run_toml), "/else/run.toml", CATALOGUE) == job_file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            SMALL + 'sync = "pss"',
            "job[1] \"a\".sync: unknown value, got 'pss' (valid: allreduce, ps)",
        ),
        (SERVED + "servers = 0", 'job[1] "a".servers: must be >= 1, got 0'),
        (
            SERVED + "servers = 2\nworkers_per_server = 2",
            'job[1] "a".servers: a job has either so many servers or so many workers_per_server',
        ),
        (SERVED + "workers_per_server = 0.5", 'job[1] "a".workers_per_server: must be >= 1'),
        (SERVED + "staleness = -1", 'job[1] "a".staleness: must be >= 0, got -1'),
        (
            SERVED + 'staleness = "never"',
            "job[1] \"a\".staleness: must be an integer or 'unbounded', got 'never'",
        ),
        (
            SMALL + "servers = 2",
            'job[1] "a".servers: only a job with sync = "ps" has parameter servers',
        ),
        (
            SMALL + 'staleness = "unbounded"',
            'job[1] "a".staleness: only a job with sync = "ps" has parameter servers',
        ),
        (
            SERVED.replace("logreg", "kmeans"),
            "job[1] \"a\".sync: kmeans has no slices, got 'ps'",
        ),
    ],
)
def test_impossible_parameter_servers_are_explained(text: str, message: str) -> None:
    assert message in problem(text)


def test_the_resolved_file_is_read_back_equal() -> None:
    for text in (SMALL, FULL, SWEEP):
        job_file = parse(text)
        run_toml = dump_toml({"format": 1, **to_document(job_file), "versions": {"a": "1"}})
        assert from_document(tomllib.loads(run_toml), "/else/run.toml", CATALOGUE) == job_file


SWEEP = """
[[job]]
name = "m"
model = "mlp"
data = "digits"
epochs = 1
options.lr = 0.5
[job.sweep]
hidden = [[3], [4, 5]]
seed = [1, 2]
options.seed = [9]
"""


def test_a_sweep_gives_one_job_per_point_with_readable_names() -> None:
    jobs = parse(SWEEP).jobs
    assert [job.name for job in jobs] == [
        "m-hidden=3-seed=1-seed=9",
        "m-hidden=3-seed=2-seed=9",
        "m-hidden=4,5-seed=1-seed=9",
        "m-hidden=4,5-seed=2-seed=9",
    ]
    assert [(job.seed, job.options) for job in jobs][1:3] == [
        (2, {"lr": 0.5, "hidden": [3], "seed": 9}),
        (1, {"lr": 0.5, "hidden": [4, 5], "seed": 9}),
    ]


def test_every_kind_of_value_is_swept_and_named() -> None:
    sweep = """
    [job.sweep]
    l2 = [0.1, 1e-05]
    bias = [true, false]
    data = ["census", "digits"]
    arrival = ["10s", 5]
    """
    jobs = parse(SMALL + sweep).jobs
    assert len(jobs) == 16
    assert jobs[0].name == "a-l2=0.1-bias=true-data=census-arrival=10s"
    assert jobs[-1].name == "a-l2=1e-05-bias=false-data=digits-arrival=5"
    assert jobs[-1].arrival_s == 5.0


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("l2 = 0.1", 'job[1] "a".sweep.l2: must be a list of at least one value, got 0.1'),
        ("l2 = []", 'job[1] "a".sweep.l2: must be a list of at least one value, got []'),
        ("l2 = [1, 1]", "job[1] \"a\".sweep.l2: two values give the same name 'l2=1'"),
        ('solver = ["a b", "a_b"]', "two values give the same name 'solver=a_b'"),
        ('name = ["x"]', 'job[1] "a".sweep.name: cannot be swept'),
        ("l2 = [0, -1]\nbias = [2]", '"a-l2=0-bias=2".options.bias: must be true or false'),
        ("epochs = [0]", 'job[1] "a-epochs=0".epochs: must be >= 1, got 0'),
        (f'solver = ["{"x" * 100}"]', "gives a name of more than 100 letters"),
        ("\n".join(f"k{n} = {list(range(20))}" for n in range(5)), "gives 3200000 jobs, at most"),
        ("options = 3", 'job[1] "a".sweep.options: must be a table, got 3'),
        (f"l2 = [{10**25}]", "must fit into 64 bits"),
    ],
)
def test_an_impossible_sweep_is_refused(sweep: str, message: str) -> None:
    assert message in problem(SMALL + "[job.sweep]\n" + sweep)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "epochs = 3",
            "epoch = 3",
            "job[1] \"a\".epoch: unknown key, did you mean 'epochs'?, got 3",
        ),
        ("epochs = 3", "epochs = 0", 'job[1] "a".epochs: must be >= 1, got 0'),
        ("epochs = 3", "epochs = 3.0", 'job[1] "a".epochs: must be an integer, got 3.0'),
        ("epochs = 3", "epochs = true", 'job[1] "a".epochs: must be an integer, got True'),
        ("epochs = 3", "", 'job[1] "a".epochs: is missing, and so is any other stop rule'),
        ("epochs = 3", f"epochs = {10**30}", 'job[1] "a".epochs: must fit into 64 bits'),
        (
            '"logreg"',
            '"logrge"',
            "job[1] \"a\".model: unknown model, got 'logrge' (valid: kmeans, logreg, mlp)",
        ),
        ('"logreg"', "3", 'job[1] "a".model: must be a text, got 3'),
        (
            '"census"',
            '"sensus"',
            "unknown data, got 'sensus' (valid: census, digits, the path of a file)",
        ),
        ('model = "logreg"', "", 'job[1] "a".model: is missing (valid: kmeans, logreg, mlp)'),
        ('data = "census"', "", 'job[1] "a".data: is missing (valid: census, digits)'),
        ('name = "a"', "", "job[1].name: is missing"),
        ('"a"', '"../a"', "job[1].name: must be 1-100 letters, digits or ._+=,- starting"),
        ('"a"', '"a\\nb"', "job[1].name: must be 1-100 letters"),
        ('"a"', "5", "job[1].name: must be 1-100 letters"),
    ],
)
def test_a_wrong_job_key_is_named_with_its_value(old: str, new: str, message: str) -> None:
    assert message in problem(SMALL.replace(old, new))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("weight = 0", 'job[1] "a".weight: must be > 0, got 0'),
        ("weight = nan", 'job[1] "a".weight: must be a finite number, got nan'),
        ("target_loss = inf", "must be a finite number, got inf"),
        ("tolerance = -1", 'job[1] "a".tolerance: must be > 0, got -1'),
        ("patience = 0", 'job[1] "a".patience: must be >= 1, got 0'),
        ('deadline = "0s"', "job[1] \"a\".deadline: must be > 0, got '0s'"),
        ('arrival = "soon"', 'job[1] "a".arrival: must be a duration such as 10, "10s"'),
        ("arrival = -1", 'job[1] "a".arrival: must be a duration'),
        ("arrival = 1979-05-27", 'job[1] "a".arrival: must be a duration'),
        ("seed = -1", 'job[1] "a".seed: must be >= 0, got -1'),
        ("min_workers = 20", 'job[1] "a".min_workers: 20 > chunks = 16'),
        ("min_workers = 3\nmax_workers = 2", 'job[1] "a".max_workers: 2 < min_workers = 3'),
        ("chunks = []", 'job[1] "a".chunks: must be an integer, got []'),
        ("options = 3", 'job[1] "a".options: must be a table, got 3'),
        ("options.l22 = 1", "job[1] \"a\".options.l22: unknown option, did you mean 'l2'?"),
        ('options.l2 = "x"', "job[1] \"a\".options.l2: must be a number, got 'x'"),
        ('options.solver = "x"', "job[1] \"a\".options.solver: 'x' is neither 'lbfgs' nor 'gd'"),
        ("options.l2 = nan", 'job[1] "a".options.l2: must be a finite number, got nan'),
        ("options.l2 = {}", 'job[1] "a".options.l2: must be a number, a text, true or false'),
        ("options.l2 = [[1]]", 'job[1] "a".options.l2: must be a number, a text, true or false'),
        ("options.l2 = 1979-05-27", 'job[1] "a".options.l2: must be a number, a text'),
        ("sweep = 3", 'job[1] "a".sweep: must be a table, got 3'),
    ],
)
def test_an_impossible_value_is_named_by_its_key(line: str, message: str) -> None:
    assert message in problem(SMALL + line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "job: there is no [[job]] table"),
        ("job = []", "job: there is no [[job]] table"),
        ("job = 3", "job: there is no [[job]] table"),
        ("job = [3]", "job[1]: must be a table, got 3"),
        ("[job]\nname = 'a'", "job: must be an array of tables: write [[job]]"),
        ("[[jobs]]", "jobs: unknown key, did you mean 'job'?"),
        ('"x\\ny" = 1', "'x\\ny': unknown key"),
        ("[run]\nrond = 1", "run.rond: unknown key, did you mean 'round'?, got 1 (valid: "),
        ("run = 1", "run: must be a table, got 1"),
        ("[run]\nround = 0", "run.round: must be > 0, got 0"),
        ("[run]\nranks = 1", "run.ranks: must be >= 2, got 1"),
        ("[run]\nkeep_checkpoints = 0", "run.keep_checkpoints: must be >= 1, got 0"),
        ("[run]\npolicy = 'slack'", "run.policy: unknown policy, got 'slack' (valid: fair, slaq)"),
        ("[run]\npolicy = []", "run.policy: unknown policy, got [] (valid: fair, slaq)"),
        ("[run.policy]\nwindow = 1", "run.policy.name: is missing (valid: fair, slaq)"),
        ("[run.policy]\nname = 'slaq'\nwindow = 0", "run.policy.window: 0 < 1, got 0"),
        ("[run.policy]\nname = 'slaq'\nwindow = {}", "run.policy.window: must be a number, a"),
        ("[run.policy]\nname = 'fair'\nw = 0", "run.policy.w: unknown option (valid: none), got 0"),
        ("data = 1", "data: must be a table, got 1"),
        ("data.x = 1", "data.x: must be a table, got 1"),
        ("data.x = {}", "data.x: needs either `path`, a file, or `source`, a built-in set"),
        ("data.x = {path='a',source='census'}", "data.x: needs either `path`"),
        ("data.x = {source='no'}", "data.x.source: unknown data, got 'no' (valid: census, digits)"),
        ("data.x = {path=''}", "data.x.path: must be the path of a file, got ''"),
        ("data.x = {path='a',rows=0}", "data.x.rows: must be >= 1, got 0"),
        (
            "data.x = {path='a',format='x'}",
            "data.x.format: unknown value, got 'x' (valid: csv, npy)",
        ),
        ("data.x = {path='a',cols=0}", "data.x.cols: unknown key, got 0 (valid: format, label, "),
        ("data.'../x' = {path='a'}", "data.'../x': is not a name of 1-100 letters"),
        ("defaults.name = 'a'", "defaults.name: unknown key, got 'a' (valid: arrival, "),
        ("defaults.epochs = 'a'", "defaults.epochs: must be an integer, got 'a'"),
        ("defaults.options = 1", "defaults.options: must be a table, got 1"),
        ("a = ", "line 1 (end of file): is not TOML: Invalid value"),
        (
            "\n\na = 1\na = 2\n",
            "line 4, column 6: is not TOML: this key was given a value before, got 'a = 2'",
        ),
        ("a = = 1", "line 1, column 5: is not TOML: Invalid value"),
        ("\na = [", "line 2 (end of file): is not TOML: Invalid value"),
        ("a = " + "[" * 5000, "file: is nested too deeply"),
        ("a." * 101 + "a = 1", "file: has a key of more than 100 parts, got 'a.a.a."),
        ("[" + "'a' . " * 101 + "a]", "file: has a key of more than 100 parts"),
        ("x." * 99 + "a = 1", "x: unknown key"),
        ("# " + "." * 200, "job: there is no [[job]] table"),
        ("a = " + "1" * 5000, "file: is not TOML: Exceeds the limit"),
        ("run = 0x" + "f" * 5000, "run: must be a table, got an extreme int"),
    ],
    ids=lambda text: text[:30],
)
def test_a_wrong_file_is_explained_in_one_line(text: str, message: str) -> None:
    assert problem(text).startswith(message)


def test_a_name_used_twice_is_refused_with_both_places() -> None:
    message = problem(SMALL + SMALL)
    assert message == 'job[2] "a".name: duplicate name, also that of job[1] "a", got \'a\''
    sweep = SMALL + "[job.sweep]\nseed = [1]\n" + SMALL.replace('"a"', '"a-seed=1"')
    assert 'also that of job[1] "a-seed=1"' in problem(sweep)


def test_too_many_jobs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobfile, "MAX_JOBS", 1)
    assert problem(SMALL + SMALL.replace('"a"', '"b"')) == "job: more than 1 jobs"


def test_a_users_model_is_found_beside_the_job_file() -> None:
    names = [
        parse(SMALL.replace('"logreg"', f'"{name}"')).jobs[0].model
        for name in ("pkg.mod:Class", "my.py:Class", "/abs/my.py:Class")
    ]
    assert names == ["pkg.mod:Class", "/jobs/my.py:Class", "/abs/my.py:Class"]


@pytest.mark.parametrize("name", [":", "a:", ":A", "a:b c", "a:0"])
def test_a_users_model_must_name_a_class(name: str) -> None:
    assert "unknown model" in problem(SMALL.replace('"logreg"', f'"{name}"'))


def test_a_users_model_that_is_missing_or_not_wanted_is_refused() -> None:
    text = SMALL.replace('"logreg"', '"broken:A"')
    assert 'job[1] "a".model: broken:A: there is no such module' in problem(text)
    with pytest.raises(JobFileError, match=r"no such file, got '/jobs/my\.py'"):
        parse(SMALL.replace('"logreg"', '"my.py:A"'), check_files=True)
    without = Catalogue(CATALOGUE.models, CATALOGUE.policies, CATALOGUE.builtin_data)
    with pytest.raises(JobFileError, match="unknown model"):
        parse_job_file(text, "x.toml", without)


def test_missing_data_files_are_refused_by_path(tmp_path: Path) -> None:
    text = SMALL.replace('"census"', '"x"') + "[data.x]\npath = 'x.csv'\n"
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(JobFileError, match=r"data\.x\.path: there is no such file.*x\.csv"):
        read_job_file(path, CATALOGUE)
    (tmp_path / "x.csv").write_text("1")
    assert read_job_file(path, CATALOGUE).data == {"x": {"path": str(tmp_path / "x.csv")}}


def test_job_files_that_cannot_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.toml"
    with pytest.raises(NotFoundError, match=r"job\.toml: there is no such job file"):
        read_job_file(path, CATALOGUE)
    with pytest.raises(JobFileError, match="cannot be read: Is a directory"):
        read_job_file(tmp_path, CATALOGUE)
    path.write_bytes(b"# ok\n\xff\xfe")
    with pytest.raises(JobFileError, match="line 2: is not UTF-8 text"):
        read_job_file(path, CATALOGUE)
    path.write_text("\ufeff" + SMALL)
    assert len(read_job_file(path, CATALOGUE).jobs) == 1
    monkeypatch.setattr(tomlfile, "MAX_BYTES", 10)
    with pytest.raises(JobFileError, match="is longer than 10 bytes"):
        read_job_file(path, CATALOGUE)


def test_another_policy_may_be_chosen_afterwards() -> None:
    job_file = parse(FULL)
    assert with_policy(job_file, "slaq", CATALOGUE) is job_file
    changed = with_policy(job_file, "fair", CATALOGUE)
    assert (changed.run.policy, changed.run.policy_options) == ("fair", {})
    assert changed.jobs == job_file.jobs
    with pytest.raises(JobFileError, match="command line: --policy: unknown policy, got 'x'"):
        with_policy(job_file, "x", CATALOGUE)


def test_a_catalogue_takes_only_parameters_that_a_file_can_hold() -> None:
    @dataclass(frozen=True)
    class Odd:
        table: dict[str, int]

    Odd.__annotations__["table"] = dict[str, int]
    with pytest.raises(TypeError, match="table: fields of type"):
        dataclass_validator(Odd)
    with pytest.raises(TypeError, match="is not a dataclass"):
        dataclass_validator(int)


def survives(text: str) -> None:
    try:
        job_file = parse(text)
    except JobFileError as error:
        assert len(str(error).splitlines()) == 1
        assert len(str(error)) < 2000
        return
    again = dump_toml(to_document(job_file))
    assert parse(again) == job_file


@given(st.text(max_size=80))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_jobs_or_a_job_file_error(text: str) -> None:
    survives(text)


@given(st.integers(0, len(FULL)), st.integers(0, 30), st.text(max_size=5))
@settings(max_examples=300, deadline=None)
def test_any_edit_of_a_job_file_gives_jobs_or_a_job_file_error(
    start: int, length: int, text: str
) -> None:
    survives(FULL[:start] + text + FULL[start + length :])


_keys = st.sampled_from(
    [
        *("run", "data", "defaults", "job", "policy", "name", "round", "seed", "ranks"),
        *("model", "epochs", "options", "sweep", "l2", "solver", "hidden", "path", "source"),
        *("weight", "arrival", "chunks", "min_workers", "a", "", "x\ny", "../x"),
    ]
)
_scalars = (
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    | st.sampled_from(["a", "logreg", "mlp", "census", "10s", "slaq", 10**400, 1, 2, 0.5])
)
_documents = st.dictionaries(
    _keys,
    st.recursive(
        _scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
        max_leaves=10,
    ),
    max_size=4,
)
_values = st.one_of(_scalars, st.lists(_scalars, max_size=3), _documents)
_jobs = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b", "c"]),
        "model": st.sampled_from(["mlp", "logreg", "kmeans"]),
    },
    optional={
        "data": st.sampled_from(["census", "digits", "x"]),
        "epochs": st.integers(0, 3) | _values,
        "seed": st.integers(-1, 2**64) | _values,
        "weight": _values,
        "chunks": st.integers(0, 4) | _values,
        "min_workers": st.integers(0, 4) | _values,
        "max_workers": st.integers(0, 4) | _values,
        "options": st.dictionaries(_keys, _values, max_size=2),
        "sweep": st.dictionaries(_keys, st.lists(_scalars, max_size=3), max_size=2),
    },
)


@given(_documents)
@settings(max_examples=120, deadline=None)
def test_any_document_gives_jobs_or_a_job_file_error(document: dict[str, object]) -> None:
    survives(dump_toml(document).replace("1" + "0" * 400, "0x" + "f" * 5000))


@given(st.lists(_jobs, min_size=1, max_size=3), st.dictionaries(_keys, _values, max_size=2))
@settings(max_examples=120, deadline=None)
def test_any_jobs_give_specs_or_a_job_file_error(
    jobs: list[dict[str, object]], defaults: dict[str, object]
) -> None:
    survives(dump_toml({"defaults": {"data": "census", "epochs": 1, **defaults}, "job": jobs}))
    survives(dump_toml({"defaults": {"data": "census", "epochs": 1}, "job": jobs}))


def test_data_may_be_the_path_of_a_file_beside_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("1,2\n")
    text = SMALL.replace('"census"', '"table.csv"')
    job_file = parse_job_file(text, str(tmp_path / "jobs.toml"), CATALOGUE)
    path = str(tmp_path / "table.csv")
    assert job_file.jobs[0].data == path
    assert job_file.data == {path: {"path": path}}
    with pytest.raises(JobFileError, match=r"data: there is no such file, got '.*lost\.csv'"):
        parse_job_file(text.replace("table", "lost"), str(tmp_path / "jobs.toml"), CATALOGUE)


UTILITIES = {
    'kind = "constant", peak = 10': UtilityCurve(UtilityKind.CONSTANT, 10),
    'kind = "sigmoid", peak = 50, target = "30s", steepness = 0.5': UtilityCurve(
        UtilityKind.SIGMOID, 50, 30.0, 0.5
    ),
    'kind = "linear", peak = 5, target = "1m"': UtilityCurve(UtilityKind.LINEAR, 5, 60.0),
    'kind = "step", peak = 5, target = 7': UtilityCurve(UtilityKind.STEP, 5, 7.0),
    'kind = "table", values = [9, 4, 0], every = "20s"': UtilityCurve(
        UtilityKind.TABLE, values=(9.0, 4.0, 0.0), every_s=20.0
    ),
}


@pytest.mark.parametrize("table", UTILITIES)
def test_a_utility_is_read_and_comes_back_from_the_resolved_file(table: str) -> None:
    job_file = parse(SMALL + f"utility = {{ {table} }}\n")
    assert job_file.jobs[0].utility == UTILITIES[table]
    back = parse(dump_toml(to_document(job_file)))
    assert back.jobs[0].utility == UTILITIES[table]


def test_a_utility_of_the_defaults_holds_for_jobs_without_one() -> None:
    defaults = '[defaults]\nutility = { kind = "constant", peak = 3 }\n'
    assert parse(defaults + SMALL).jobs[0].utility == UtilityCurve(UtilityKind.CONSTANT, 3.0)


@pytest.mark.parametrize(
    "table, message",
    [
        ('kind = "cubic"', "utility.kind: unknown value"),
        ("peak = 3", "utility.kind: is missing"),
        ('kind = "constant"', "utility.peak: is missing"),
        ('kind = "sigmoid", peak = 3, target = 5', "utility.steepness: is missing (sigmoid"),
        ('kind = "step", peak = 3', "utility.target: is missing (step utility)"),
        ('kind = "step", peak = 3, target = "soon"', "utility.target: must be a duration"),
        ('kind = "constant", peak = 3, every = 2', "utility.every: is not used"),
        ('kind = "table", values = [1, 2], every = 1', "utility.values: "),
        ('kind = "constant", peak = 3, color = 2', "utility.color: unknown key"),
    ],
)
def test_an_impossible_utility_is_named_by_its_key(table: str, message: str) -> None:
    assert message in problem(SMALL + f"utility = {{ {table} }}\n")
