"""The `hpcslaq` command: a table of contents of its subcommands."""

from __future__ import annotations

import importlib
import os
import sys

import click

from hpcslaq import __version__
from hpcslaq.cli.output import emit_error, usage_message
from hpcslaq.mpi.launch import THREAD_VARIABLES, launched_size

#: Subcommand -> module that defines it (imported only when it is used), and its help line.
#: A module with several commands is followed by the name of the one.
COMMANDS = {
    "run": "hpcslaq.cli.run",
    "resume": "hpcslaq.cli.run:resume_command",
    "status": "hpcslaq.cli.status",
    "submit": "hpcslaq.cli.requests:submit_command",
    "cancel": "hpcslaq.cli.requests:cancel_command",
    "set-weight": "hpcslaq.cli.requests:set_weight_command",
    "close": "hpcslaq.cli.requests:close_command",
    "slurm": "hpcslaq.cli.slurm",
    "report": "hpcslaq.cli.report",
    "explain": "hpcslaq.cli.explain",
    "validate": "hpcslaq.cli.validate",
    "models": "hpcslaq.cli.models",
    "predict": "hpcslaq.cli.predict",
    "bench": "hpcslaq.cli.bench",
    "doctor": "hpcslaq.cli.doctor",
    "drill": "hpcslaq.cli.drill",
    "simulate": "hpcslaq.cli.simulate",
    "trace": "hpcslaq.cli.trace",
    "record": "hpcslaq.cli.record",
    "replay": "hpcslaq.cli.replay",
    "fidelity": "hpcslaq.cli.fidelity",
    "whatif": "hpcslaq.cli.whatif",
}


class LazyGroup(click.Group):
    """Imports a subcommand's module only when it is called: `--help` stays instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command object; None where there is no such name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Train many models on shared ranks; give the workers where they help most."""


def main() -> None:
    """Entry point: like click's own, but usage errors obey --json too."""
    as_json = "--json" in sys.argv
    if launched_size(os.environ) is not None:
        # A rank of a launch that somebody else started. Before numpy is imported: one BLAS
        # thread, unless the user wants more.
        for name in THREAD_VARIABLES:
            os.environ.setdefault(name, "1")
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        emit_error(usage_message(error), "UsageError", error.exit_code, as_json=as_json)
        sys.exit(error.exit_code)
    except click.Abort:
        if as_json:
            emit_error("interrupted", "Interrupted", 130, as_json=True)
        sys.exit(130)
