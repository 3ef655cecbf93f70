"""How commands speak: one JSON value or text for people, and errors with exit codes.

Commands raise `HpcslaqError`; this module turns it into one line on standard error, or
into `{"error": ...}` on standard output under `--json`, and into the exit code.
"""

from __future__ import annotations

import functools
import json
import math
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

from hpcslaq.errors import HpcslaqError

json_option = click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON value.")


def octal_mode(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """A click callback: file permissions such as 750; None where none were given."""
    if text is None:
        return None
    if not re.fullmatch("0?[0-7]{3}", text):
        raise click.BadParameter(f"{text!r} is no octal number such as 750")
    return int(text, 8)


def emit_json(value: Any) -> None:
    """Write one JSON value to standard output; non-finite numbers become null."""
    click.echo(json.dumps(_finite(value), indent=1))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class _Terminal(Console):
    """rich would end the program where the reader of a pipe has gone; our callers decide."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def terminal(*, is_error: bool = False) -> Console:
    """Where text for people goes: standard output or standard error, as they are now.

    Without a terminal nothing is wrapped or cut: what reads it may look for whole lines.
    """
    console = _Terminal(stderr=is_error, highlight=False)
    if not console.is_terminal:
        console.width = 10_000
    return console


def emit_error(message: str, kind: str, exit_code: int, *, as_json: bool) -> None:
    """Report an error where the caller looks for it."""
    if as_json:
        emit_json({"error": {"kind": kind, "message": message, "exit_code": exit_code}})
    else:
        click.echo(f"error: {message}", err=True)


def usage_message(error: click.ClickException) -> str:
    """A usage error in one line, with the command whose help lists what is valid."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = "" if context is None else f" (see {context.command_path} --help)"
    return error.format_message().rstrip(".") + hint


def _os_message(error: OSError) -> str:
    """Which file, then what the system says."""
    known = error.filename is not None and error.strerror
    return f"{error.filename}: {error.strerror}" if known else str(error)


def reports_errors(command: Callable[..., int | None]) -> Callable[..., None]:
    """Decorator of commands: the return value or the error becomes the exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            code = command(*args, **kwargs) or 0
        except HpcslaqError as error:
            emit_error(str(error), type(error).__name__, error.exit_code, as_json=as_json)
            code = error.exit_code
        except BrokenPipeError:
            # The reader of a pipe (head, less) has gone: nothing is wrong.
            sys.stderr.close()
            code = 0
        except OSError as error:
            emit_error(_os_message(error), type(error).__name__, 1, as_json=as_json)
            code = 1
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if not as_json:
                raise
            # A program reads the output: it gets its one value, people the traceback.
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"
            emit_error(message, "InternalError", 1, as_json=True)
            code = 1
        sys.exit(code)

    return wrapped
