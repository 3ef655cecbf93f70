"""`hpcslaq doctor`: whether this environment can run, and what to do where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from hpcslaq.cli.checks import Check, Level, check_all
from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.errors import LaunchError
from hpcslaq.mpi.launch import FAMILIES

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@click.command("doctor")
@click.option(
    "--run",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    help="Directory in which runs will be (its file system is tested); default: runs.",
)
@click.option("--mpi", "family", type=click.Choice(["auto", *FAMILIES]), default="auto")
@json_option
@reports_errors
def command(directory: Path, family: str, as_json: bool) -> int:
    """Check MPI, file systems, processors and data packages; exit code 4 if a check fails."""
    checks = []
    for check in check_all(directory, family):
        checks.append(check)
        if not as_json:
            _show(check)
    if as_json:
        emit_json(_document(checks))
    failed = [check.name for check in checks if check.level is Level.FAIL]
    if not as_json:
        num_warnings = sum(check.level is Level.WARN for check in checks)
        end = f"failed: {', '.join(failed)}" if failed else "ready to run"
        click.echo(f"\n{end}; {num_warnings} warnings")
    return LaunchError.exit_code if failed else 0


def _document(checks: list[Check]) -> dict[str, Any]:
    return {
        "is_ready": all(check.level is not Level.FAIL for check in checks),
        "checks": [
            {
                "name": check.name,
                "level": check.level.value,
                "found": check.found,
                "advice": check.advice,
                "figures": dict(check.figures),
            }
            for check in checks
        ],
    }


def _show(check: Check) -> None:
    console = terminal()
    style = _STYLES[check.level]
    console.print(f"[{style}]{check.level.value:4}[/] {check.name}: {escape(check.found)}")
    if check.advice:
        console.print(escape(f"     -> {check.advice}"))
