"""`hpcslaq predict`: how well a predictor would have foretold a recorded loss sequence."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from hpcslaq.cli.output import emit_json, json_option, reports_errors, terminal
from hpcslaq.core.jobs import Convergence
from hpcslaq.errors import DataError, NotFoundError
from hpcslaq.predict.replay import PREDICTORS, START, parse_losses, replay_losses

#: Longest file that is read.
_MAX_BYTES = 64 * 2**20
#: Horizons where none is asked for.
_HORIZONS = (1, 5, 10)
#: Columns of the table: heading and figure.
_FIGURES = {
    "relative error": "mean_relative_error",
    "drop error, weighted": "weighted_drop_error",
    "drop error, median": "median_drop_error",
    "missed": "missed_share",
    "80 % interval holds": "coverage_80",
}


@click.command("predict")
@click.argument("loss_file", type=click.Path(path_type=Path))
@click.option(
    "--horizon",
    "horizons",
    type=click.IntRange(1),
    multiple=True,
    help="Iterations ahead; may be given several times. Default: 1, 5 and 10.",
)
@click.option(
    "--predictor",
    type=click.Choice(PREDICTORS),
    default="drop",
    help="Ours (drop, the default), the fit of the SLAQ paper, or that fit as its authors' code "
    "solves it (slow).",
)
@click.option(
    "--convergence",
    type=click.Choice([family.value for family in Convergence]),
    default=Convergence.SUBLINEAR.value,
    help="Curve family that SLAQ's fit takes; drop needs none.",
)
@click.option("--target-loss", type=float, help="Loss at which the job ends; drop makes use of it.")
@json_option
@reports_errors
def command(
    loss_file: Path,
    horizons: tuple[int, ...],
    predictor: str,
    convergence: str,
    target_loss: float | None,
    as_json: bool,
) -> None:
    """Replay the losses of LOSS_FILE and say how good each prediction was.

    The file has one loss per line, or lines "iteration,loss". At every iteration from the
    sixth the predictor sees the losses so far and nothing else.
    """
    if target_loss is not None and not math.isfinite(target_loss):
        raise click.BadParameter(f"{target_loss} is not finite", param_hint="'--target-loss'")
    losses = parse_losses(_read(loss_file), str(loss_file))
    needed = START + min(horizons or _HORIZONS)
    if len(losses) < needed:
        raise DataError(
            f"{loss_file}: {len(losses)} losses in it, and {needed} are needed for a prediction "
            f"from iteration {START} on over {needed - START}"
        )
    found = replay_losses(
        losses,
        horizons or _HORIZONS,
        predictor=predictor,
        convergence=Convergence(convergence),
        target_loss=target_loss,
    )
    value: dict[str, Any] = {
        "file": str(loss_file),
        "num_losses": len(losses),
        "predictor": predictor,
        "convergence": None if predictor == "drop" else convergence,
        "target_loss": target_loss,
        "first_iteration": START,
        "horizons": [asdict(errors) for errors in found],
    }
    if len(found) == 1:
        # One horizon: its figures are at hand without looking into the list.
        value |= asdict(found[0])
    if as_json:
        emit_json(value)
        return
    console = terminal()
    console.print(f"{loss_file}: {len(losses)} losses, predictor {predictor}")
    console.print(_table(value["horizons"]))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a directory, not a file of losses") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise DataError(f"{path}: is longer than {_MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not a text file") from None


def _table(horizons: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("ahead", "predictions", *_FIGURES):
        table.add_column(heading, justify="right")
    for errors in horizons:
        figures = [errors[key] for key in _FIGURES.values()]
        table.add_row(
            str(errors["horizon"]),
            str(errors["num_predictions"]),
            *["-" if figure is None else f"{figure:.3g}" for figure in figures],
        )
    return table
