"""Every command ends with one clear error and the right exit code, whatever it is given."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcslaq.cli import requests, status
from hpcslaq.cli.main import cli
from hpcslaq.record.rundir import RunDirectory
from tests.hostile import damaged

Invoke = Callable[..., Result]

#: Commands that read one file of their own, FILE standing for it.
FILE_COMMANDS = {
    "run": ("run", "FILE", "--out", "OUT"),
    "validate": ("validate", "FILE"),
    "record": ("record", "FILE", "--out", "OUT"),
    "simulate": ("simulate", "FILE"),
    "trace check": ("trace", "check", "FILE"),
    "trace summary": ("trace", "summary", "FILE"),
    "trace convert": ("trace", "convert", "FILE"),
    "predict": ("predict", "FILE"),
}
#: Commands that read a run directory, RUN standing for it.
RUN_COMMANDS = {
    "status": ("status", "RUN"),
    "report": ("report", "RUN", "--no-html"),
    "explain": ("explain", "RUN", "only"),
    "cancel": ("cancel", "RUN", "only"),
    "set-weight": ("set-weight", "RUN", "only", "2.0"),
    "close": ("close", "RUN"),
    "replay": ("replay", "RUN"),
    "fidelity": ("fidelity", "RUN"),
    "whatif": ("whatif", "RUN"),
}
USAGE, NOT_FOUND = 2, 3


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_WAIT_S", 0.0)
    monkeypatch.setattr(status, "_LOOK_S", 0.0)


def filled(command: tuple[str, ...], **places: Path) -> list[str]:
    return [str(places.get(word, word)) for word in command]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def assert_one_error(result: Result, *codes: int) -> None:
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in codes, result.output
    lines = result.output.strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, result.output
    assert "Traceback" not in result.output


def is_answer(name: str, result: Result) -> bool:
    """Whether the command did what it is for; `replay` ends with 1 where commands differ."""
    return result.exit_code == 0 or (name == "replay" and "differences" in result.output)


def endless_nesting(path: Path) -> None:
    path.write_text("x = " + "[" * 100_000)


def loop(path: Path) -> None:
    path.symlink_to(path)


NONSENSE: dict[str, Callable[[Path], object]] = {
    "directory": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "NUL": lambda path: path.write_bytes(b"\0" * 5000),
    "nested": endless_nesting,
    "nested JSON": lambda path: path.write_text('[{"a":' * 50_000),
    "long line": lambda path: path.write_text("1" * 3_000_000),
    "many keys": lambda path: path.write_text("".join(f"[a{n}]\n" for n in range(20_000))),
    "loop": loop,
}


@pytest.mark.parametrize("name", FILE_COMMANDS)
@pytest.mark.parametrize("kind", NONSENSE)
def test_a_file_of_nonsense_is_one_error(tmp_path: Path, name: str, kind: str) -> None:
    if (name, kind) == ("simulate", "empty"):
        pytest.skip("every key of a workload has a default")
    file, out = tmp_path / "file.toml", tmp_path / "out"
    NONSENSE[kind](file)
    result = call(*filled(FILE_COMMANDS[name], FILE=file, OUT=out))
    assert_one_error(result, USAGE)
    assert str(file) in result.output
    assert not out.exists()


@pytest.mark.parametrize("name", FILE_COMMANDS)
def test_a_missing_file_is_not_found(tmp_path: Path, name: str) -> None:
    file, out = tmp_path / "nowhere.toml", tmp_path / "out"
    assert_one_error(call(*filled(FILE_COMMANDS[name], FILE=file, OUT=out)), NOT_FOUND)


@pytest.mark.parametrize("name", RUN_COMMANDS)
def test_a_missing_run_is_not_found_and_a_file_is_none(tmp_path: Path, name: str) -> None:
    for run in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        (tmp_path / "file").touch()
        assert_one_error(call(*filled(RUN_COMMANDS[name], RUN=run)), NOT_FOUND)


@pytest.mark.parametrize("name", RUN_COMMANDS)
@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize("file", ["run.toml", "journal.jsonl", "result.json"])
def test_a_run_with_a_file_of_nonsense_is_one_error_or_read(
    make_run: Callable[..., RunDirectory], name: str, kind: str, file: str
) -> None:
    run = make_run(exit_code=75)
    (run.path / file).unlink()
    NONSENSE[kind](run.path / file)
    result = call(*filled(RUN_COMMANDS[name], RUN=run.path))
    if not is_answer(name, result):
        assert_one_error(result, USAGE, NOT_FOUND)


@pytest.mark.parametrize("name", ["status", "report", "explain", "replay", "cancel"])
@given(data=st.data())
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_run_with_a_damaged_file_is_one_error_or_read(
    tmp_path: Path, make_run: Callable[..., RunDirectory], name: str, data: st.DataObject
) -> None:
    sample = tmp_path / "sample"
    if not sample.exists():
        make_run(exit_code=75).path.rename(sample)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(sample, tmp_path / "run")
    file = (
        tmp_path / "run" / data.draw(st.sampled_from(["run.toml", "journal.jsonl", "result.json"]))
    )
    file.write_bytes(data.draw(damaged(file.read_bytes(), is_text=True)))
    result = call(*filled(RUN_COMMANDS[name], RUN=tmp_path / "run"))
    if not is_answer(name, result):
        assert_one_error(result, USAGE, NOT_FOUND)


def test_an_error_is_one_json_value_where_json_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "file.toml"
    NONSENSE["binary"](file)
    for command in ("validate", "simulate"):
        result = call(command, str(file), "--json")
        assert result.exit_code == USAGE
        error = json.loads(result.stdout)["error"]
        assert error["exit_code"] == USAGE
        assert str(file) in error["message"]


@pytest.mark.parametrize(
    "name", ["../../evil", "/tmp/evil", "a/b", "", ".", "..", "-x", "é", "a\n"]
)
def test_a_job_name_that_would_leave_the_run_is_refused(
    job_file: Path, tmp_path: Path, name: str
) -> None:
    job_file.write_text(job_file.read_text().replace('name = "a"', f"name = {json.dumps(name)}"))
    result = call("run", str(job_file), "--out", str(tmp_path / "out"))
    assert_one_error(result, USAGE)
    assert "name" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("chunks", "10000000000"),
        ("chunks", "-1"),
        ("epochs", "9" * 30),
        ("epochs", "1.5"),
        ("weight", "nan"),
        ("weight", "0"),
        ("deadline", '"-5s"'),
        ("seed", "-1"),
        ("min_workers", "true"),
        ("colour", '"red"'),
    ],
)
def test_an_impossible_value_is_named_with_its_key(job_file: Path, key: str, value: str) -> None:
    lines = [line for line in job_file.read_text().splitlines() if not line.startswith(f"{key} =")]
    lines.insert(lines.index("[job.sweep]"), f"{key} = {value}")
    job_file.write_text("\n".join(lines))
    result = call("validate", str(job_file))
    assert_one_error(result, USAGE)
    assert key in result.output
    assert value.strip('"')[:20] in result.output.lower()


def test_a_duplicate_key_and_a_duplicate_name_are_named(job_file: Path) -> None:
    text = job_file.read_text()
    job_file.write_text(text.replace("epochs = 3", "epochs = 3\nepochs = 4"))
    result = call("validate", str(job_file))
    assert_one_error(result, USAGE)
    assert "line 13" in result.output
    assert "this key was given a value before, got 'epochs = 4'" in result.output
    twin = '\n[[job]]\nname = "b"\nmodel = "logistic"\ndata = "own"\nepochs = 1\n' * 2
    job_file.write_text(text + twin)
    result = call("validate", str(job_file))
    assert_one_error(result, USAGE)
    assert "duplicate name" in result.output
    assert "'b'" in result.output


def test_a_pipe_is_read_like_a_file(job_file: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(job_file.read_text()))
    writer.start()
    assert call("validate", str(pipe)).exit_code == 0
    writer.join()
