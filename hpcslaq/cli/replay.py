"""`hpcslaq replay`: the journal of a run through a fresh coordinator."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from hpcslaq.cli.output import emit_json, json_option, reports_errors
from hpcslaq.record.rundir import RunDirectory
from hpcslaq.sim.replay import replay_run


@click.command("replay")
@click.argument("run", type=click.Path(path_type=Path))
@json_option
@reports_errors
def command(run: Path, as_json: bool) -> int:
    """Replay RUN's journal and verify that every command is the same (exit code 1 if not)."""
    replay = replay_run(RunDirectory.open_existing(run))
    if as_json:
        emit_json({**asdict(replay), "is_identical": replay.is_identical})
    else:
        counts = f"{replay.num_events} events, {replay.num_commands} commands"
        verdict = "identical" if replay.is_identical else f"{replay.num_differences} differences"
        refused = f"; {replay.num_refused} events refused, as in the run"
        click.echo(f"{run}: {counts}: {verdict}" + (refused if replay.num_refused else ""))
        for one in replay.differences:
            click.echo(f"  event {one.event_number} ({one.event}, {one.now:.6f} s)")
            click.echo(f"    recorded: {one.recorded or 'nothing'}")
            click.echo(f"    replayed: {one.replayed or 'nothing'}")
    return 0 if replay.is_identical else 1
