"""Exit codes, and exactly one JSON value whatever happens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hpcslaq.cli.main import COMMANDS, cli, main
from hpcslaq.cli.output import emit_json, json_option, reports_errors
from hpcslaq.errors import DataError, HpcslaqError, LaunchError, NotFoundError


def failing(error: BaseException) -> click.Command:
    @click.command()
    @json_option
    @reports_errors
    def command(as_json: bool) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HpcslaqError("a"), 1),
        (DataError("a"), 2),
        (NotFoundError("a"), 3),
        (LaunchError("a"), 4),
        (OSError(28, "No space left on device"), 1),
    ],
)
def test_an_error_is_one_line_or_one_value_with_its_exit_code(error: Exception, code: int) -> None:
    text = CliRunner().invoke(failing(error), [])
    assert (text.exit_code, text.stdout) == (code, "")
    assert text.stderr == f"error: {error}\n"
    value = CliRunner().invoke(failing(error), ["--json"])
    assert value.exit_code == code
    assert json.loads(value.stdout)["error"] == {
        "kind": type(error).__name__,
        "message": str(error),
        "exit_code": code,
    }


def test_a_fault_of_ours_shows_its_traceback_and_still_one_value() -> None:
    result = CliRunner().invoke(failing(ZeroDivisionError("oops")), ["--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["kind"] == "InternalError"
    assert "Traceback" in result.stderr and "oops" in result.stderr
    plain = CliRunner().invoke(failing(ZeroDivisionError("oops")), [])
    assert isinstance(plain.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["predict", "x", "--horizon", "0"], "'--horizon': 0 is not in the range x>=1 (see "),
        (["predict"], "Missing argument 'LOSS_FILE' (see "),
        (["predict", "x", "--colour"], "No such option"),
        (["nothing"], "No such command 'nothing' (see "),
        (["bench", "decision", "--policy", "best"], "there is no 'best' (valid: edf, "),
    ],
)
def test_a_usage_error_is_one_line_that_names_the_help(
    line: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hpcslaq", *line])
    with pytest.raises(SystemExit) as ended:
        main()
    text = capsys.readouterr()
    assert ended.value.code == 2 and text.out == ""
    assert text.err.startswith("error: ") and text.err.count("\n") == 1
    assert said in text.err and " --help)" in text.err


def test_an_error_of_the_system_names_its_file(tmp_path: Path) -> None:
    error = FileExistsError(17, "File exists", str(tmp_path / "a"))
    text = CliRunner().invoke(failing(error), [])
    assert text.stderr == f"error: {tmp_path / 'a'}: File exists\n"


def test_the_return_value_is_the_exit_code() -> None:
    @click.command()
    @reports_errors
    def command() -> int:
        return 75

    assert CliRunner().invoke(command, []).exit_code == 75


def test_numbers_that_json_lacks_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": math.nan, "b": [1.0, math.inf], "c": (2,), 3: True})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1.0, None], "c": [2], "3": True}


#: A batch script is text for sbatch, and the schema of traces is a page to read.
TEXT_ONLY = [["slurm", "script"], ["trace", "schema"]]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    parts = (
        [[name, part] for part in command.commands] if hasattr(command, "commands") else [[name]]
    )
    for line in parts:
        result = CliRunner().invoke(cli, [*line, "--help"])
        assert result.exit_code == 0
        assert "--json" in result.stdout or line in TEXT_ONLY
